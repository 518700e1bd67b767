"""The command line: parse, call, nothing else."""

import sys

from benchmark.allocator import keep_freed_memory
from benchmark.commands import main

if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main())
