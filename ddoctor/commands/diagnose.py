"""`ddoctor diagnose`: diagnose evidence bundles."""

from __future__ import annotations

from ddoctor.report.options import Bundles, HtmlPath, JsonPath, MarkdownPath


def diagnose(
    bundle: Bundles,
    json: JsonPath = None,
    markdown: MarkdownPath = None,
    html: HtmlPath = None,
) -> int:
    """Diagnose evidence bundles of other hosts or earlier runs."""
    from ddoctor import engine
    from ddoctor.evidence import bundle as bundles
    from ddoctor.report.output import Outputs

    outputs = Outputs(json=json, markdown=markdown, html=html, reads=bundle)
    evidence = bundles.read_all(bundle)
    report = engine.examine(evidence, "diagnose")
    outputs.write(report, evidence)
    return report.exit_code
