"""A record that a campaign goes on with: what is complete stays, a case in writing goes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from kdaverify.campaign.task import key_of
from kdaverify.verdicts.lines import Torn, cut, read_lines
from kdaverify.verdicts.record import RecordError, is_parquet
from kdaverify.verdicts.seal import Seal
from kdaverify.verdicts.verdict import Verdict


def resumed(path: Path, seed: int, take: Callable[[Sequence[Verdict]], None]) -> None:
    """Reads the complete cases of the record, one at a time, and leaves nothing else in it.

    The rows of a case lie together, so all cases but the last are complete. The last is tested
    again, in one case too many where it was complete; where a seal says that it is, it stays, and
    the record is open again.

    Args:
        take: called with the rows of each; what it raises leaves the file as it is.
    Raises:
        RecordError: the file cannot be read, or is that of another campaign.
    """
    if is_parquet(path):
        raise RecordError(
            f"record: wanted a file ending in .jsonl, got {path}; a campaign goes on with what it"
            " has written, row by row"
        )
    if not path.exists():
        return
    kept, case, closed = 0, list[Verdict](), False
    for item in read_lines(path):
        if isinstance(item, Torn):
            break
        if closed:
            raise RecordError(
                f"record: {path} holds several sessions; name a file that campaigns alone write"
            )
        if isinstance(item, Seal):
            closed = True
            continue
        if item.seed != seed:
            raise RecordError(
                f"record: {path} is of seed {item.seed}, this run of {seed}; name another file or"
                " --kda-seed"
            )
        if case and key_of(item) != key_of(case[0]):
            take(case)
            kept, case = kept + len(case), []
        case.append(item)
    if closed and case:
        take(case)
        kept += len(case)
    cut(path, kept)
