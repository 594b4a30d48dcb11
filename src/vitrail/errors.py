"""The error for bad input, as opposed to a bug."""


class UserError(ValueError):
    """Bad input. The message is one line: the value, the rule, and the way out.

    The commands print that line and exit with 1. Every other exception keeps its traceback.
    """
