"""What a buyer is shown of a week, and the readings that filters take from it.

An observation is made from the books and the week's readings; hidden states never come here. Its keys, their order and
their presence are those of the paper's example week (Appendix).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from stocktake_jax.desk.books import ROUTES, Bill, Books
from stocktake_jax.desk.contracts import EVERGREEN, SUPPLIERS, TERM_TABLE, TERMS, host
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, Tape, World
from stocktake_jax.models.canal import BANDS
from stocktake_jax.models.quality import RESULTS
from stocktake_jax.models.supplier import NO_NUMBER, WORDS
from stocktake_jax.models.tape import Readings

Observation = dict[str, Any]
"""The observation of a week: Python numbers, strings, lists and dicts only, ready for JSON."""

Values = Mapping[str, Mapping[str, float]]
"""factor -> channel -> what is shown of one week, as `shown_values` gives it."""

BULLETINS = {
    "calm": "Quiet week on the lanes. Both straits are working through their usual traffic and few owners route south.",
    "watch": "Some owners are holding ships short of the Red Sea. Passages through both straits are a little down.",
    "crash": "Passages through the Red Sea have collapsed this week. Owners wait for word before they commit.",
    "blockage": "Nothing is moving through Suez. Ships lie at anchor at both ends, and the Cape sees more traffic.",
    "crisis": "Hardly a ship risks the Red Sea. Carriers have moved their schedules to the Cape, which is very busy.",
    "recovery": "Ships are moving through Suez again and working off the queue. Passages are still short of normal.",
}
"""The trade-press bulletin by the canal's visible band. The three kinds of crash read alike."""

BRIEFINGS = {
    "calm": "Our analysts see no trouble on the Suez lane this week.",
    "watch": "Our analysts see tension on the Suez lane; whether it breaks is not decided.",
    "false_alarm": "Our analysts call this week's scare on the Suez lane a false alarm.",
    "short": "Our analysts class the disruption on the Suez lane as one of the short kind.",
    "long": "Our analysts class the disruption on the Suez lane as one of the long kind.",
    "recovery": "Our analysts see the Suez lane recovering from a disruption.",
}
"""What a briefing says, by the canal's true regime."""

AUDITS = {
    "ontime": "The auditors found spot working as it should.",
    "slipping": "The auditors found spot slipping: work is late or incomplete.",
    "failing": "The auditors found spot failing: hardly anything leaves the works.",
    "defunct": "The auditors found spot's gates shut: the firm is gone for good.",
}
"""What an audit says, by spot's true band."""


def shown_values(world: World, tape: Tape) -> list[Values]:
    """What the channels of a single tape show, week by week; realized_fill in every week, sourced or not."""
    readings = tape.readings(world, host(np.ones(np.shape(tape.states["canal"])), np.bool_))
    columns = {name: {c: np.asarray(v).tolist() for c, v in channels.items()} for name, channels in readings.items()}
    weeks = len(columns["canal"]["suez_count"])
    return [{n: {c: v[week] for c, v in channels.items()} for n, channels in columns.items()} for week in range(weeks)]


def observe(world: World, books: Books, values: Values, bill: Bill | None) -> Observation:
    """The observation of a week.

    Args:
        world: prices and what the channels show.
        books: of this week, unbatched host values.
        values: of this week.
        bill: of this week; None in week 0.
    """
    on_hand, on_order, arrived = int(books.on_hand), int(books.on_order), int(books.arrived)
    canal, supplier = values["canal"], values["supplier"]
    demand, freight, port = values["demand"], values["freight"], values["port"]
    position = {
        "on_order": on_order,
        "inventory_position": on_hand + on_order,
        "arrived": arrived,
    }
    seen: Observation = {"week": int(books.week), "inventory": on_hand}
    seen |= position
    seen |= {
        "components": {"unit": {"on_hand": on_hand} | position},
        "served": {"unit": int(books.served)},
        "pipeline": _pipeline(world, books),
        "cost_breakdown": breakdown(bill),
        "contracts": _contracts(world, books),
        "contract_open": [SUPPLIERS[s] for s in books.contracts.supplier[books.open_contracts()].tolist()],
        "term_menu": list(TERMS),
    }
    if int(books.lock_weeks) > 0:
        seen["freight_lock"] = {"rate": float(books.lock_rate), "weeks_left": int(books.lock_weeks)}
    seen |= {
        "suez_count": _number(canal["suez_count"]),
        "bab_count": _number(canal["bab_count"]),
        "cape_count": _number(canal["cape_count"]),
        "bulletin": BULLETINS[_visible_band(world, canal)],
        "suppliers": _suppliers(world, supplier),
        "pos_units": _number(demand["pos_units"]),
        "demand_forecast": _number(demand["demand_forecast"]),
        "freight_index": _number(freight["freight_index"]),
        "freight_outlook": _number(freight["freight_outlook"]),
        "berth_wait": _number(port["berth_wait"]),
        "wait_outlook": _number(port["wait_outlook"]),
        "aql_result": RESULTS[int(values["quality"]["aql_result"])],
    }
    if bool(books.sourced_spot):
        seen["realized_fill"] = float(supplier["realized_fill"])
    return seen


def breakdown(bill: Bill | None) -> dict[str, float]:
    """A bill as shown: the items of every week, then those that this week bills; empty without a bill."""
    if bill is None:
        return {}
    amounts = {name: float(getattr(bill, name)) for name in Bill.ALWAYS + Bill.SOMETIMES}
    return {name: amount for name, amount in amounts.items() if name in Bill.ALWAYS or amount != 0.0}


def _pipeline(world: World, books: Books) -> list[dict[str, Any]]:
    ships, eta = books.ships, books.eta(world)
    rows = []
    for week in np.flatnonzero(ships.at_sea).tolist():
        status = "queued_at_suez" if ships.queued[week] else "diverted_via_cape" if ships.diverted[week] else "at_sea"
        rows.append(
            {
                "qty": int(ships.qty[week]),
                "route": ROUTES[int(ships.route[week])],
                "supplier": SUPPLIERS[int(ships.supplier[week])],
                "component": "unit",
                "dispatched_week": week,
                "status": status,
                "eta": int(eta[week]),
            }
        )
    return rows


def _contracts(world: World, books: Books) -> list[dict[str, Any]]:
    contracts, base = books.contracts, float(world.costs.base_suez)
    rows = []
    for slot in np.flatnonzero(contracts.listed).tolist():
        terms, end = TERM_TABLE[int(contracts.terms[slot])], int(contracts.end[slot])
        rows.append(
            {
                "supplier": SUPPLIERS[int(contracts.supplier[slot])],
                "start_week": int(contracts.start[slot]),
                "end_week": None if end >= EVERGREEN else end,
                "unit_price": base * terms.price,
                "otif_floor": terms.otif_floor,
                "break_fee": terms.break_fee,
            }
        )
    return rows


def _suppliers(world: World, spot: Mapping[str, float]) -> list[dict[str, Any]]:
    qualified, discount, backup = (
        float(x) for x in (world.costs.delta_qualified, -world.costs.delta_spot, world.costs.delta_backup)
    )
    numbers = [None if spot[c] == NO_NUMBER else _number(spot[c]) for c in ("otif", "lead_days")]
    return [
        {
            "id": "qualified",
            "otif": 99,
            "lead_days": 14,
            "band": "ontime",
            "onboard_lead": 0,
            "unit_premium": qualified,
            "unit_delta": qualified,
        },
        {
            "id": "spot",
            "otif": numbers[0],
            "lead_days": numbers[1],
            "band": WORDS[int(spot["band"])],
            "onboard_lead": 0,
            "realized_lead_slip": float(spot["realized_lead_slip"]),
            "unit_discount": discount,
            "unit_delta": -discount,
        },
        {
            "id": "backup",
            "otif": 95,
            "lead_days": 16,
            "band": "ontime",
            "onboard_lead": 1,
            "unit_delta": backup,
        },
    ]


def _number(value: float) -> int | float:
    """A count as an int; worlds with counts between whole numbers show them as they are."""
    return int(value) if value == int(value) else float(value)


def _visible_band(world: World, canal: Mapping[str, float]) -> str:
    """The band whose counts are shown. From the counts, so that the bulletin cannot tell more than they do."""
    suez, bab = np.asarray(world.canal.suez), np.asarray(world.canal.bab)
    distance = abs(suez - canal["suez_count"]) + abs(bab - canal["bab_count"])
    return BANDS[int(np.argmin(distance))]


_PLAIN = {
    "canal": ("suez_count", "bab_count", "cape_count"),
    "demand": ("pos_units", "demand_forecast"),
    "freight": ("freight_index", "freight_outlook"),
    "port": ("berth_wait", "wait_outlook"),
}


def readings_from(observation: Mapping[str, Any]) -> Readings:
    """The numbers of an observation that filters read: factor -> channel -> float64 scalar, nan where there is none.

    Raises:
        InputError: if the observation lacks a key or has an unknown word.
    """
    try:
        spot = next((row for row in observation["suppliers"] if row["id"] == "spot"), None)
        if spot is None:
            raise InputError("the observation has no row for spot among its suppliers")
        out = {name: {key: observation[key] for key in keys} for name, keys in _PLAIN.items()}
        out["supplier"] = {
            "band": _place(spot["band"], WORDS, "spot's band"),
            "otif": NO_NUMBER if spot["otif"] is None else spot["otif"],
            "lead_days": NO_NUMBER if spot["lead_days"] is None else spot["lead_days"],
            "realized_lead_slip": spot["realized_lead_slip"],
            "realized_fill": observation.get("realized_fill", np.nan),
        }
        out["quality"] = {"aql_result": _place(observation["aql_result"], RESULTS, "aql_result")}
        return {n: {key: host(value, np.float64) for key, value in out[n].items()} for n in FACTORS}
    except KeyError as error:
        raise InputError(f"the observation has no {error}; it must be one that an episode gave") from None
    except (ValueError, TypeError) as error:
        raise InputError(f"this is no observation of an episode: {error}") from None


def _place(word: Any, words: tuple[str, ...], what: str) -> int:
    if word not in words:
        raise ValueError(f"{what} is {word!r}; it must be one of {', '.join(words)}")
    return words.index(word)
