"""The one error class for bad input."""


class InputError(ValueError):
    """Something the user gave cannot be used: a file, an option, an argument.

    The message is one line that names the place (file, line, field), what came, what was wanted and the fix.
    The command line prints it and exits with status 2; a defect of this package never raises it.
    """
