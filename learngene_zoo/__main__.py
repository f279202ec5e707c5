"""`python -m learngene_zoo` is `lgzoo`; so is `torchrun --nproc_per_node 2 -m learngene_zoo`."""

import sys


def run() -> None:
    """Run the command line; Ctrl-C during its import exits as it does later."""
    try:
        from learngene_zoo.cli.main import main
    except KeyboardInterrupt:
        sys.exit(130)
    main(prog_name="lgzoo")


if __name__ == "__main__":
    run()
