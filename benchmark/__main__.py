"""The command line: parse, call, nothing else."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # until a run has imported what it needs: `starting.collect_from_here`
    from benchmark.runtime import BEGAN, keep_freed_memory, spin_briefly

    spin_briefly()
    keep_freed_memory()
    from benchmark.cli.runs import main

    sys.exit(main(since=BEGAN))
