"""Exit codes: what every command ends with."""

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_NOTHING = 0, 1, 2, 3
EPILOG = """exit codes: 0 everything judged passed; 1 a failure was found; 2 the call was wrong;
3 nothing could be judged here"""

OF_RUN = {"pass": EXIT_PASS, "fail": EXIT_FAIL, "not judged": EXIT_NOTHING}
"""By the word for a whole run."""
