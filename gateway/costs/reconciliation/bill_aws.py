"""What an AWS Cost and Usage Report (CUR, CUR 2.0) says in its words: columns, kinds of lines, and the GPUs
of instance types. Pure.

Columns and kinds of lines are those of AWS's data dictionary (docs.aws.amazon.com/cur, "Line item details"
and "Product columns"), GPUs those of its pages on accelerated instances (aws.amazon.com/ec2/instance-types).
"""

from __future__ import annotations

import re
from typing import Final

MARKS: Final = ("lineItem/UsageStartDate", "line_item_usage_start_date")
"""Columns that only such a report has."""
COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "start": ("lineItem/UsageStartDate", "line_item_usage_start_date"),
    "end": ("lineItem/UsageEndDate", "line_item_usage_end_date"),
    "resource": ("lineItem/ResourceId", "line_item_resource_id"),
    "instance": ("product/instanceType", "product_instance_type"),
    "gpu_type": (),
    "gpu_count": ("product/gpu", "product_gpu", "product.gpu"),
    "region": ("product/regionCode", "product_region_code", "product/region"),
    "purchase": (),
    "cost": ("lineItem/UnblendedCost", "line_item_unblended_cost"),
    "currency": ("lineItem/CurrencyCode", "line_item_currency_code"),
    "category": ("lineItem/LineItemType", "line_item_line_item_type"),
    "description": ("lineItem/LineItemDescription", "line_item_line_item_description"),
    "usage_type": ("lineItem/UsageType", "line_item_usage_type"),
    "gpu_hours": (),
}
QUANTITIES: Final = (
    ("lineItem/UsageAmount", "pricing/unit"),
    ("line_item_usage_amount", "pricing_unit"),
)
CATEGORIES: Final = {
    "usage": "usage",
    "discountedusage": "usage",
    "savingsplancoveredusage": "usage",
    "tax": "tax",
    "credit": "credit",
    "refund": "credit",
    "fee": "purchase",
    "rifee": "purchase",
    "savingsplanupfrontfee": "purchase",
    "savingsplanrecurringfee": "purchase",
    "savingsplannegation": "adjustment",
    "discount": "adjustment",
    "bundleddiscount": "adjustment",
    "edpdiscount": "adjustment",
    "privateratediscount": "adjustment",
    "sppdiscount": "adjustment",
}
"""By kind of line, in lower case."""
_COMMITTED: Final = ("discountedusage", "savingsplancoveredusage")
_RUNNING: Final = re.compile(r"(^|-)(BoxUsage|SpotUsage|DedicatedUsage|UnusedBox|UnusedDed)(:|$)")

INSTANCES: Final[dict[str, tuple[str, int]]] = {
    "p6-b200.48xlarge": ("B200", 8),
    "p6-b300.48xlarge": ("B300", 8),
    "p5.4xlarge": ("H100", 1),
    "p5.48xlarge": ("H100", 8),
    "p5e.48xlarge": ("H200", 8),
    "p5en.48xlarge": ("H200", 8),
    "p4d.24xlarge": ("A100", 8),
    "p4de.24xlarge": ("A100", 8),
    "p3.2xlarge": ("V100", 1),
    "p3.8xlarge": ("V100", 4),
    "p3.16xlarge": ("V100", 8),
    "p3dn.24xlarge": ("V100", 8),
    **{
        f"{family}.{size}xlarge": (gpu, count)
        for family, gpu in (("g5", "A10G"), ("g6", "L4"), ("g6e", "L40S"))
        for size, count in (("", 1), ("2", 1), ("4", 1), ("8", 1), ("16", 1), ("12", 4), ("24", 4), ("48", 8))
    },
    **{
        f"g4dn.{size}xlarge": ("T4", count)
        for size, count in (("", 1), ("2", 1), ("4", 1), ("8", 1), ("16", 1), ("12", 4))
    },
    "g4dn.metal": ("T4", 8),
}
"""GPU type, number of GPUs."""


def is_running_time(usage_type: str) -> bool:
    """Whether a line is about an instance's running time, and not about its disk or network."""
    return _RUNNING.search(usage_type) is not None


def purchase_of(kind: str, usage_type: str) -> str:
    """The purchase model. `kind`: of the line."""
    if "SpotUsage" in usage_type:
        return "spot"
    return "reserved" if kind.casefold() in _COMMITTED else "on_demand"
