"""The parts of bench/run: who is measured, when, and what is said about it."""
