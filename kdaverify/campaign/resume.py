"""A record that a campaign goes on with: what is complete in it stays, the case that was being written does not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kdaverify.campaign.task import key_of
from kdaverify.verdicts.record import RecordError, RecordWriter, is_parquet, read
from kdaverify.verdicts.verdict import Verdict


def resumed(path: Path, seed: int) -> list[Verdict]:
    """The complete cases of the record; [] where there is none yet.

    The rows of a case lie together, so all cases but the last are complete. The last is asked again, in one case too many where it was
    complete, and the file begins anew without it.

    Raises:
        RecordError: the file cannot be read, or is that of another campaign.
    """
    if is_parquet(path):
        raise RecordError(f"record: wanted a file ending in .jsonl, got {path}; a campaign goes on with what it has written, row by row")
    if not path.exists():
        return []
    kept = _without_last(read(path).verdicts)
    strange = next((verdict for verdict in kept if verdict.seed != seed), None)
    if strange is not None:
        raise RecordError(f"record: {path} is of seed {strange.seed}, this run of {seed}; name another file or --kda-seed")
    beside = path.with_suffix(".kept.jsonl")
    beside.unlink(missing_ok=True)
    with RecordWriter(beside) as writer:
        for verdict in kept:
            writer.append(verdict)
    beside.replace(path)
    return kept


def _without_last(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [verdict for verdict in verdicts if key_of(verdict) != key_of(verdicts[-1])]
