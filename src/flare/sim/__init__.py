"""The simulator on the command line: describing runs, running them, showing and writing reports."""
