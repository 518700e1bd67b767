"""The command `fulcrum`: `python -m benchmark`, also where the user's own folder has a package `benchmark`.

Importing it imports the suite's packages, wherever the path has others of their names. Run as a file it is the command
too, which is how the command starts itself again.
"""

import sys
from pathlib import Path

HERE = str(Path(__file__).resolve().parent)
sys.path.insert(0, HERE)
try:
    from benchmark.__main__ import main
finally:
    sys.path.remove(HERE)

if __name__ == "__main__":
    sys.exit(main())
