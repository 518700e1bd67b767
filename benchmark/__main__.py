"""Entry point of `python -m benchmark`."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # until a run has imported its modules: `runtime.enable_garbage_collection`
    from benchmark.runtime import STARTED, keep_freed_memory, spin_briefly

    spin_briefly()
    keep_freed_memory()
    from benchmark.cli.main import main

    sys.exit(main(started=STARTED))
