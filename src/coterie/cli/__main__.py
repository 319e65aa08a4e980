"""`python -m coterie.cli` is the command `coterie`."""

from coterie.cli import main

if __name__ == "__main__":
    main()
