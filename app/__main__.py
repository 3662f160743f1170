"""`python -m app` is `tokenglass`."""

from app.cli import main

if __name__ == "__main__":
    main(prog_name="tokenglass")
