"""The two processes of `outrace run` and what passes between them."""
