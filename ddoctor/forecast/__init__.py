"""What a training will need, said before there is anything to measure."""
