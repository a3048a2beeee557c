"""What stops growing pods instead of killing them (mode hold, `--hard-grace`): cap, freeze, soften, release."""
