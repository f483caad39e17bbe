"""Records a training script from inside its own process, and changes nothing in it."""
