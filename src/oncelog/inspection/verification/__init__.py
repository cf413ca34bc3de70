"""All invariants between the files of a data folder, and what a broker would do about each that does not hold.

verify_path(path)       a data folder, the folder of a partition or one of its files -> Report
"""

from oncelog.inspection.verification.data_folder import verify_path
from oncelog.inspection.verification.finding import Finding, Report, Severity

__all__ = ["Finding", "Report", "Severity", "verify_path"]
