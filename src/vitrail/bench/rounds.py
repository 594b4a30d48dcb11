"""How many rounds a cell is timed for, and after how many seconds they may end."""

LEAST = 3  # rounds, however long they take, because a band is made of several


def check_rounds(rounds: int, seconds: float) -> None:
    """Raise ValueError for what shows no noise or measures nothing."""
    if rounds < LEAST:
        raise ValueError(f"bench.rounds={rounds} shows no noise; use {LEAST} or more")
    if seconds <= 0:
        raise ValueError(f"bench.seconds={seconds} measures nothing; use above 0")
