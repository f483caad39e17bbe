"""The commands of `ddoctor`: one module per command, with the same name."""
