"""The faces of a report: terminal, JSON, Markdown and HTML. They see data and decide nothing."""
