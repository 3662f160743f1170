"""`python -m app`: the same as the command `tokenglass`."""

from app.cli.main import main

if __name__ == "__main__":
    main(prog_name="tokenglass")
