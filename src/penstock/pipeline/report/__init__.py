"""The report: one HTML page that says whether promises were kept, and what that cost."""

from penstock.pipeline.report.report import Report, make_report, up_to_date

__all__ = ["Report", "make_report", "up_to_date"]
