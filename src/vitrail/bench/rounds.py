"""How many rounds a cell is timed for, and after how many seconds they may end."""

from vitrail.errors import UserError

LEAST = 3  # rounds, however long they take, because a band is made of several


def check_rounds(rounds: int, seconds: float) -> None:
    """Raise UserError for what shows no noise or measures nothing."""
    if rounds < LEAST:
        raise UserError(f"bench.rounds={rounds} shows no noise; use {LEAST} or more")
    if seconds <= 0:
        raise UserError(f"bench.seconds={seconds} measures nothing; use above 0")
