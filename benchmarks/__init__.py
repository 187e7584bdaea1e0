"""What this platform measures against what the machine can do. Never part of the tests: timings are not facts."""
