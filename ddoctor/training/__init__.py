"""`ddoctor run`: start the training script on every rank, record it, and report on rank 0."""
