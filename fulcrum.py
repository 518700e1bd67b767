"""The command `fulcrum`: `python -m benchmark`, also where the user's own folder has a package `benchmark`.

Importing it imports the suite's packages, wherever the path has others of their names. Run as a file it is the command
too, which is how the command starts itself again.

A wheel has the packages below one folder, `fulcrum`, whose `__init__.py` is this file: in site-packages `benchmark`,
`eval` or `methods` would overwrite somebody else's, and theirs would be imported in place of ours. Within a process
that has imported `fulcrum` the names are the suite's, in all others whoever else has them keeps them. So code, configs
and records say `methods.fedavg.FedAvg` in a wheel as in a checkout; rewriting the imports at build time would make
two suites of one, and a method written for one could not be imported by the other.
"""

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
__path__: list[str] = []  # in a wheel this is a package: `fulcrum.methods` would be a second copy of `methods`
sys.path.insert(0, HERE)
try:
    from benchmark.__main__ import main
finally:
    sys.path.remove(HERE)

if __name__ == "__main__":
    sys.exit(main())
