"""`ddoctor report`: write the report of evidence bundles as a file."""

from __future__ import annotations

from ddoctor.report.options import Bundles, HtmlPath, MarkdownPath


def report(bundle: Bundles, markdown: MarkdownPath = None, html: HtmlPath = None) -> int:
    """Write an HTML or Markdown report of evidence bundles."""
    from ddoctor import engine
    from ddoctor.errors import DoctorError
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report.output import Outputs

    if markdown is None and html is None:
        raise DoctorError("no output file: give --html PATH or --markdown PATH")
    outputs = Outputs(markdown=markdown, html=html, reads=bundle)
    evidence = bundles.read_all(bundle)
    outputs.write_files(engine.examine(evidence, "diagnose"), evidence)
    return 0
