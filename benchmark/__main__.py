"""The command line: parse, call, nothing else."""

import gc
import sys

if __name__ == "__main__":
    gc.disable()  # until a run has imported what it needs: `starting.collect_from_here`
    from benchmark.commands import main
    from benchmark.starting import keep_freed_memory

    keep_freed_memory()
    sys.exit(main())
