"""Entry point of `python -m benchmark`."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # until a run has imported its modules: `runtime.enable_garbage_collection`
    from benchmark.runtime import STARTED, draw_to_files, keep_freed_memory, open_standard_streams, spin_briefly

    open_standard_streams()
    draw_to_files()
    spin_briefly()
    keep_freed_memory()
    from benchmark.cli.main import main

    sys.exit(main(started=STARTED))
