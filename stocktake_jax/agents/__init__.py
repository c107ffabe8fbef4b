"""Who else can play: the prompt and the tools, ways of playing (Python, Inspect, MCP, Gymnasium), agents and graders.

Nothing here imports an optional library before it is used: see `extras.require`.
"""

from stocktake_jax.agents.play import Finished, play
from stocktake_jax.agents.prompt import ARMS, prompt_hash, system_prompt
from stocktake_jax.agents.scripted import SCRIPTED, play_scripted
from stocktake_jax.agents.session import Answer, Session

__all__ = [
    "ARMS",
    "SCRIPTED",
    "Answer",
    "Finished",
    "Session",
    "play",
    "play_scripted",
    "prompt_hash",
    "system_prompt",
]
