"""The fleet: what can serve, what is full, what lies."""

from django.http import HttpRequest, HttpResponseBase

from capacity.fleet.grid import is_fresh, sums_of
from capacity.fleet.selectors import fleet_page, pool_detail
from console.accounts.selectors import Permission, require
from console.web.htmx import render
from console.web.tables import Column, number, pager
from console.web.views import page

POOL_COLUMNS = (
    Column("Pool"),
    Column("Model"),
    Column("Region"),
    Column("Hardware"),
    number("Ready", meaning="Replicas that may take work, of those wanted"),
    Column("KV occupancy now", "%", "One cell a replica, in order of its number"),
    number("Mean KV", "%", "Over the replicas with a fresh report"),
    number("Running", meaning="Requests being computed"),
    number("Waiting", meaning="Requests queued inside the engines"),
    number("Output", "tok/s"),
    number("Report", meaning="Age of the collector's last report"),
)
REPLICA_COLUMNS = (
    Column("Replica"),
    Column("State", meaning="Lifecycle, or health when it is not ok"),
    Column("Since"),
    Column("Cause"),
    number("KV", "%"),
    number("KV free", "tok"),
    number("Running"),
    number("Waiting"),
    number("Input", "tok/s"),
    number("Output", "tok/s"),
    number("Prefix hit", "%"),
    number("Scraped", meaning="Age of the last good scrape"),
    Column("Engine"),
)


@page("GET", query=("after",))
def fleet(request: HttpRequest) -> HttpResponseBase:
    """Pools by name with one cell a replica; htmx asks again every two seconds."""
    require(request.user, Permission.VIEW_ALL)
    pools = fleet_page(after=request.GET.get("after"))
    rows = [sums_of(pool) for pool in pools.rows]
    context = {
        "page": pools,
        "pager": pager(request, pools, "rows"),
        "columns": POOL_COLUMNS,
        "rows": rows,
        "replicas": sum(len(row.pool.replicas) for row in rows),
        "fresh": sum(row.fresh for row in rows),
    }
    return render(request, "capacity/fleet.html", "rows", context)


@page("GET")
def pool(request: HttpRequest, name: str) -> HttpResponseBase:
    """One pool: its replicas with state, cause and live values, and what changed."""
    require(request.user, Permission.VIEW_ALL)
    detail = pool_detail(name)
    row = sums_of(detail.pool)
    context = {
        "detail": detail,
        "row": row,
        "fresh_words": f"over {row.fresh} of {len(detail.pool.replicas)} replicas",
        "replicas": [
            {"replica": replica, "is_stale": not is_fresh(replica)}
            for replica in detail.pool.replicas
        ],
        "columns": REPLICA_COLUMNS,
        "wanted_words": f"of {detail.pool.desired_replicas} wanted",
    }
    return render(request, "capacity/pool.html", "live", context)
