"""Records a training script from inside its process, without changing its behaviour."""
