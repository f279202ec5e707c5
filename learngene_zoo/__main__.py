"""`python -m learngene_zoo` is `lgzoo`; so is `torchrun --nproc_per_node 2 -m learngene_zoo`."""

from learngene_zoo.cli.main import main

if __name__ == "__main__":
    main(prog_name="lgzoo")
