"""The options of `outrace run`: flags, files, checks, and the value both processes get."""
