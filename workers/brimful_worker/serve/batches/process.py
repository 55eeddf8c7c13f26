"""The process that samples a batch: ``brimful run``, which holds the batch's lock and ends with the front door."""

from __future__ import annotations

from brimful.config import Settings
from brimful.names import BATCH_CALLER_VARIABLE, BATCH_VARIABLE, MOST_WEIGHT
from brimful_worker.local.processes.child_process import Child
from brimful_worker.local.processes.environment import keyless_environment
from brimful_worker.serve.batches.record import Batch
from brimful_worker.serve.batches.run_files import RunFiles

_DRAIN_S = 5.0
_STOP_S = 3.0


class RunProcess:
    """One process of ``brimful run`` on the batch's files. If it is killed, the next one continues."""

    def __init__(
        self,
        files: RunFiles,
        settings: Settings,
        batch: Batch,
        *,
        lock: int,
        owner: int,
        paced: bool,
        nothing_new: bool = False,
    ) -> None:
        """Starts it. ``lock``: a descriptor that it keeps while it lives. ``owner``: see :mod:`.child_process`.

        ``paced``: it asks for the lines that ``files.pace`` lets in. ``nothing_new``: it only writes the output of what
        earlier ones have sampled.
        """
        options = ["--format", "openai-batch", "--input-format", "jsonl", "--workload", "batch", "--keep", "none"]
        options += ["--keep-going", "--no-progress", *(("--budget-tokens", "1") if nothing_new else ())]
        options += ["--pace", str(files.pace)] if paced else []
        environment = keyless_environment(settings) | {"BRIMFUL_PROVIDER": settings.profile.name}
        environment["BRIMFUL_WEIGHT"] = str(min(MOST_WEIGHT, max(1 / MOST_WEIGHT, batch.weight)))
        environment |= {BATCH_VARIABLE: "" if nothing_new else batch.id, BATCH_CALLER_VARIABLE: batch.caller}
        self._child = Child(
            "batch",
            "run",
            [str(files.input), "-o", str(files.output), *options],
            environment=environment,
            log=files.log,
            owner_fd=owner,
            pass_fds=(lock,),
        )
        self._child.start()

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._child.returncode

    def interrupt(self) -> None:
        """It waits for what has reached the provider, and ends."""
        self._child.terminate()

    def end(self) -> None:
        """End it within seconds. Blocks."""
        for grace_s in (_DRAIN_S, _STOP_S):
            self._child.terminate()
            self._child.wait(grace_s)
            if self.returncode is not None:
                return
        self._child.kill()
        self._child.wait(_STOP_S)

    @property
    def reason(self) -> str:
        """The last line that it wrote."""
        lines = self._child.log_tail(1).splitlines()
        return lines[-1] if lines else ""
