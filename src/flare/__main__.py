"""`python -m flare` is the flare command."""

from flare.cli import main

if __name__ == "__main__":
    main()
