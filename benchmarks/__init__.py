"""How fast everything is: `python -m benchmarks` measures all of it and writes one table. No part of the package."""
