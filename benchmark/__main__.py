"""Entry point of `python -m benchmark`, and of the command `fulcrum`."""

import gc
import sys


def main() -> int:
    """Runs the command in `sys.argv`, as a process of its own; returns its exit code."""
    gc.disable()  # until a run has imported its modules: `runtime.enable_garbage_collection`
    from benchmark import runtime

    runtime.put_working_folder_last()
    runtime.is_program = True
    runtime.open_standard_streams()
    runtime.draw_to_files()
    runtime.spin_briefly()
    runtime.keep_freed_memory()
    from benchmark.cli.main import main as command

    return command(started=runtime.STARTED)


if __name__ == "__main__":
    sys.exit(main())
