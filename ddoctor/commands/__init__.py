"""One module a command of `ddoctor`, named as the command."""
