"""What an agent is told: one text in four arms, and the renaming of real-world names.

The text gives the rules and the structure of the world and no advice: mechanics, prices, levers, what is seen, how each
factor behaves in words. Prices and caps come from the world that is played; nothing else of it does, so that a
misspecified world cannot be read off the prompt.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Literal, get_args

from stocktake_jax.desk import Tool
from stocktake_jax.desk.books import check_rules
from stocktake_jax.desk.contracts import TERM_TABLE, TERMS
from stocktake_jax.desk.tools import Argument, tools
from stocktake_jax.errors import InputError
from stocktake_jax.models import FACTORS, HORIZON, World

Arm = Literal["rules", "belief", "coached", "anonymous"]
"""rules: the rules alone. belief: every order also states a probability of stress per factor. coached: asks for
explicit bookkeeping of beliefs. anonymous: real-world names replaced."""

ARMS: tuple[Arm, ...] = get_args(Arm)

ARM_DOCS: Mapping[str, str] = {
    "rules": "the rules and the structure of the world, nothing else",
    "belief": "rules, and every order states a probability of stress for each factor",
    "coached": "rules, and a request to keep explicit beliefs about each factor",
    "anonymous": "rules, with the names of real places replaced",
}

RENAMED = {"suez": "arran", "bab": "tarn", "cape": "morrow"}
"""Real-world names that the tools and reports use as words, and what stands for them in the anonymous arm."""

_TEXT_NAMES = {"Suez Canal": "Arran Canal", "Red Sea": "Arran Sea", "Bab-el-Mandeb": "Tarn"} | {
    name.capitalize(): new.capitalize() for name, new in RENAMED.items()
}
_TEXT_PATTERN = re.compile(
    "|".join(
        # Underscores do not end a word here: suez_count and queued_at_suez are renamed, escape is not.
        rf"(?<![A-Za-z]){re.escape(name)}(?![A-Za-z])"
        for name in sorted(_TEXT_NAMES | RENAMED, key=len, reverse=True)
    )
)


def rename(value: Any) -> Any:
    """Text, or whatever of lists and objects holds text, with real-world names replaced; keys included."""
    if isinstance(value, str):
        return _TEXT_PATTERN.sub(lambda m: (_TEXT_NAMES | RENAMED)[m[0]], value)
    if isinstance(value, Mapping):
        return {rename(key): rename(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rename(item) for item in value]
    return value


def check_arm(arm: str) -> None:
    """Refuse unknown arms.

    Raises:
        InputError: naming those that exist.
    """
    if arm not in ARMS:
        raise InputError(f"the prompt arm must be one of {', '.join(ARMS)}, not {arm!r}")


# -- the tools of an arm

PERCENT = {factor: f"stress_{factor}" for factor in FACTORS}
"""Arguments of `place_order` in the belief arm."""


def arm_tools(base: Mapping[str, Tool], arm: str) -> dict[str, Tool]:
    """The tools as an arm shows them, from an episode's own.

    Args:
        base: `Episode.tools`.
        arm: see `Arm`.
    """
    check_arm(arm)
    if arm == "belief":
        stated = tuple(
            Argument(name, "integer", f"probability in percent that {factor} is under stress this week", high=100)
            for factor, name in PERCENT.items()
        )
        order = base["place_order"]
        needed = tuple(a for a in order.arguments if a.required)
        others = tuple(a for a in order.arguments if not a.required)
        return dict(base) | {"place_order": dataclasses.replace(order, arguments=(*needed, *stated, *others))}
    if arm == "anonymous":
        return {name: _renamed(tool) for name, tool in base.items()}
    return dict(base)


def _renamed(tool: Tool) -> Tool:
    arguments = tuple(
        dataclasses.replace(a, doc=rename(a.doc), choices=tuple(rename(c) for c in a.choices)) for a in tool.arguments
    )
    return dataclasses.replace(tool, description=rename(tool.description), arguments=arguments)


# -- the text


def system_prompt(arm: str = "rules", world: World | None = None, rules: str = "paper") -> str:
    """The whole system prompt of an arm.

    Args:
        arm: see `Arm`.
        world: prices and caps; the published world by default.
        rules: of the books; they differ in what is billed for contracts.
    """
    check_arm(arm)
    check_rules(rules)
    world = world or World.paper()
    parts = [_task(world), _week(world), _costs(world, rules), _report(), _factors(), _suppliers(world, rules)]
    if arm == "belief":
        parts.append(_BELIEF)
    if arm == "coached":
        parts.append(_COACHED)
    parts.append(_END)
    text = "\n\n".join(parts)
    return str(rename(text)) if arm == "anonymous" else text


def prompt_hash(arm: str = "rules", world: World | None = None, rules: str = "paper") -> str:
    """SHA-256 over everything an arm shows before the first report: the prompt and the tools' specifications."""
    world = world or World.paper()
    shown = [
        {"name": t.name, "description": t.description, "parameters": t.schema()}
        for t in arm_tools(tools(world), arm).values()
    ]
    document = json.dumps([system_prompt(arm, world, rules), NUDGE, shown], ensure_ascii=True, sort_keys=True)
    return hashlib.sha256(document.encode()).hexdigest()


def _money(value: Any) -> str:
    return f"{float(value):g}"


def _task(world: World) -> str:
    logistics = world.logistics
    return f"""\
# The job
You buy stock for an importer who sells a single product and ships it in from overseas. The job lasts {HORIZON} \
weeks. What counts is the sum of all costs over the {HORIZON} weeks, in dollars; make it as small as you can. No \
single week counts by itself.
You begin with {logistics.start_inventory} units on the shelf and nothing at sea. Customers usually want about \
{_money(logistics.mean_demand)} units a week, but that changes. Demand is met from the shelf; what the shelf lacks \
is lost."""


def _week(world: World) -> str:
    costs, logistics = world.costs, world.logistics
    caught = 100 * (1 - float(logistics.defects_passed))
    return f"""\
# A week
You read the report, call any of the tools you want, and end the week with exactly one call of place_order. Only \
place_order lets time pass. Its answer is the next report.
- place_order takes a rationale (a few sentences on this week's decision and the reasons for it), a quantity from 0 \
to {logistics.order_cap} units and, for a quantity above 0, a route and a supplier. It can also carry one contract \
action, which is carried out before the order, so a supplier can be signed and used in the same call. A call that is \
refused changes nothing; correct it and call again.
- An order leaves in the week that it begins, and pays that week's freight multiplier.
- Route suez: {_money(costs.base_suez)} a unit, normally {logistics.lead_suez} weeks. A ship that finds the canal \
shut waits in front of it; if it is still shut a week later, the ship turns and goes around the Cape, arrives later \
and costs a surcharge.
- Route cape: {_money(costs.base_cape)} a unit, normally {logistics.lead_cape} weeks, sometimes one more. It does \
not use the canal.
- lock_freight fixes the freight multiplier at this week's level for as many weeks as you say, counting the one that \
your order begins. It costs nothing itself. While it lasts you pay the fixed level, whether the market rises or falls, \
and its weeks run off whether you ship or not.
- expedite_air flies in up to {logistics.air_cap} units a week for {_money(costs.air)} each. They are on the shelf \
next week and touch neither the port nor its inspection.
- inspect_batch costs {_money(costs.inspection)}: of the defective units in next week's arrivals about \
{caught:.0f}% are saved.
- buy_briefing costs {_money(costs.briefing)} and tells which state the canal is truly in this week.
- buy_audit costs {_money(costs.audit)} and tells how spot truly stands this week: on time, slipping, failing or \
defunct."""


def _costs(world: World, rules: str) -> str:
    costs = world.costs
    if rules == "paper":
        contracts = (
            "What a contract's terms say of price, delivery floor and break fee is shown but not billed, and a "
            "supplier's onboard_lead is shown but delays nothing."
        )
    else:
        contracts = (
            "A contract's terms scale the route's price. Lapsing a live contract bills its break fee. The delivery "
            "floor is shown but not billed."
        )
    return f"""\
# Costs
- Freight: units shipped x (route price x freight multiplier + the supplier's delta), billed when the order leaves.
- {_money(costs.holding)} a week for each unit on the shelf and {_money(costs.in_transit)} a week for each unit at sea.
- {_money(costs.stockout)} for each unit of demand that is lost.
- {_money(costs.demurrage)} a week for each unit that the port holds back.
- {_money(costs.rework)} for each defective unit; it does not reach the shelf.
- {_money(costs.surcharge)} a unit when a ship turns away from a shut canal.
- {_money(costs.crisis)} for each unit that spot leaves out of an order in a week with the canal at watch, in a false \
alarm or disrupted.
- {_money(costs.dual_source)} a week while two or more suppliers are under live contracts.
- The tools' prices above. {contracts}"""


def _report() -> str:
    return """\
# The report
- week, inventory (on the shelf), on_order (at sea), inventory_position (their sum), arrived, served, and pipeline: \
every shipment with its expected week of arrival and status. cost_breakdown: last week's bill by item.
- contracts, contract_open (suppliers whose contract has ended or who are gone), term_menu, and freight_lock while \
one is on.
- Canal: suez_count, bab_count and cape_count, ships that passed the Suez Canal, the Bab-el-Mandeb strait and the Cape \
this week, and a bulletin from the trade press.
- Suppliers: a scorecard each (band, otif = share delivered on time and in full, lead_days). For spot also \
realized_lead_slip, this week's delay in days, and, in weeks in which an order with spot left, realized_fill, the \
share of it that was shipped; the rest never comes. These two are noisy.
- Demand: pos_units, what customers wanted this week, and demand_forecast, a second reading. Both are noisy.
- Freight: freight_index, this week's multiplier times 100 (100 is normal), and freight_outlook, a noisier reading.
- Port: berth_wait and wait_outlook, days; both noisy.
- Quality: aql_result, the incoming inspection: accept, marginal or reject."""


def _factors() -> str:
    return """\
# What is hidden
Six factors go their own ways. None depends on another or on what you do. Each is in one of a few states; you never \
see the state, only the readings.
- canal: usually calm. Tension can build up (watch) and then pass, turn out a false alarm, or become a real \
disruption, which is short (over within two weeks) or long (no limit, often many weeks), and is followed by a \
recovery. While it is disrupted it is shut to your ships; in a false alarm it is open. The first week of a disruption \
of either kind and a false alarm show the same readings; the week after tells them apart. The counts are exact, except \
that traffic at the Cape is sometimes higher for reasons of its own.
- supplier (spot): reliable, wobbling (ships a good half of an order), degraded (ships next to nothing, for a few \
weeks at most) or defunct (gone for good, rarely). Wobbling either settles or becomes degraded; on the scorecard and \
in an audit the first week of degraded looks like wobbling. The scorecard's word is kinder than the truth.
- demand: normal; a promotion, a spike of a few weeks; a seasonal lift, higher and lasting longer; or a structural \
decline that lasts very long. A promotion and a lift begin alike.
- freight: slack (cheap), normal, tightening (dearer) or a spike (several times the normal rate, for weeks). \
Tightening can go either way; a spike begins like tightening.
- port: clear, building, congested (lasts for weeks) or a customs hold (usually one week). While it is congested or \
on hold nothing lands: arrivals wait outside, week after week, and cost demurrage. The readings of both are alike.
- quality: in control, drifting, or out of control. The longer a drift has gone on, the likelier it is to tip over. \
Drifting and above all out of control, part of what arrives is defective."""


def _suppliers(world: World, rules: str) -> str:
    costs = world.costs
    terms = "; ".join(
        f"{name}: {t.weeks} weeks, price x{t.price:g}, floor {t.otif_floor}, break fee {t.break_fee:g}"
        for name, t in zip(TERMS, TERM_TABLE[1:], strict=True)
    )
    plain = TERM_TABLE[0]
    if rules == "paper":
        more = (
            "sign, switch and renew all begin a new contract with the supplier named and remove that supplier's ended "
            "ones; lapse removes the ended ones only and leaves a live contract as it is."
        )
    else:
        more = (
            "sign, switch and renew replace that supplier's contracts with a new one; lapse ends all of them. backup "
            "takes its first order one week after its first contract begins; renewing without a gap keeps it ready, "
            "lapsing does not. "
            "A rationale must not be empty."
        )
    return f"""\
# Suppliers and contracts
- qualified: delta +{_money(costs.delta_qualified)} a unit; ships orders in full. You hold no contract with it at \
first. Its contracts never end.
- spot: delta {_money(costs.delta_spot)} a unit; see above. You begin with a contract with it that never ends.
- backup: delta +{_money(costs.delta_backup)} a unit; ships orders in full.
You can order only from a supplier with a live contract. contract_action is sign, switch, renew or lapse, with \
contract_supplier and, unless you lapse, contract_terms if you like ({terms}; without terms {plain.weeks} weeks, \
price x{plain.price:g}, floor {plain.otif_floor}, break fee {plain.break_fee:g}). {more} A contract is \
open, and no longer live, once its end_week has come or its supplier is gone."""


NUDGE = "Nothing was called. Call place_order to end the week, or another tool first."
"""Sent to a model whose message calls no tool; part of the prompt's hash."""

STRESS_WORDS = {
    "canal": "disrupted",
    "supplier": "degraded or defunct",
    "demand": "in a promotion, a seasonal lift or a structural decline",
    "freight": "at a spike",
    "port": "congested or on a customs hold",
    "quality": "out of control",
}
"""What being under stress means, factor by factor."""

_BELIEF = (
    "# Probabilities\nWith every order you also state, for each factor, the probability in percent (a whole number "
    "from 0 to 100) that it is under stress in the week of the report that you are looking at. Under stress means: "
    + "; ".join(f"{factor} {words}" for factor, words in STRESS_WORDS.items())
    + ". The probabilities are scored against what was true; they change nothing in the books."
)

_COACHED = """\
# Keeping track
Treat each factor as a question that stays open. In every rationale, before you decide: (1) repeat what you believed \
last week about each of the six factors; (2) say which of this week's readings speak for or against it, and how noisy \
they are; (3) write down the states that remain possible, with rough probabilities; (4) say what next week's \
readings would have to be to change your mind; (5) then decide, and say which of these beliefs the decision rests on."""

_END = f"""\
# Going on
Play all {HORIZON} weeks yourself, one order a week, until an answer says that the episode is over. Nobody will \
answer questions. Put your reasoning of each week into the rationale."""
