#!/usr/bin/env python3
"""Makes the bundled conversations with tools: models/data/tools-calibration.jsonl and tools-heldout.jsonl.

    tools/make_tools_text.py            # writes both
    tools/make_tools_text.py --check    # fails if the files are not what it would write

A line is a conversation in OpenAI's wire form: tools, a question, one or more calls with their arguments as JSON, what the tools return,
an answer. Every conversation comes from one of the templates below. The two files share no template, so no tool, no schema and no sentence
frame of what a model is certified on stands in what it is calibrated on; names of people, towns and things are drawn from two halves of the
lists. Everything is drawn from a seed: the same bytes on every machine. The text is this project's own (Apache-2.0)."""
import argparse
import datetime
import json
import os
import random

EACH = 17  # conversations of a template
TOWNS = "Oslo Lima Porto Kyoto Nairobi Bergen Quito Ghent Hanoi Perth Tallinn Cork Malmo Turin Izmir Accra Leeds Basel Tampa Busan".split()
COUNTRIES = dict(zip(TOWNS, "NO PE PT JP KE NO EC BE VN AU EE IE SE IT TR GH GB CH US KR".split()))
NAMES = "Ada Bruno Carla Deniz Emil Farah Goran Hana Ines Jonas Kira Luca Mona Nils Olga Pavel Rosa Sami Tara Viktor".split()
THINGS = ["desk lamp", "water bottle", "rain jacket", "notebook", "bike helmet", "tea kettle", "headphones", "backpack", "wool scarf", "phone case",
          "garden hose", "cutting board", "alarm clock", "yoga mat", "paint set", "screwdriver", "picture frame", "sleeping bag", "coffee grinder", "umbrella"]
TOPICS = ["heat pumps", "sourdough", "solar sails", "coral reefs", "tidal power", "bee keeping", "old maps", "glass blowing", "bridge cables", "moss gardens",
          "night trains", "wind tunnels", "salt mines", "paper folding", "seed banks", "river locks", "clay roofs", "star charts", "wool mills", "snow fences"]


class Draw:
    """What one conversation is filled with."""

    def __init__(self, seed, half):
        self.random, self.half = random.Random(seed), half

    def of(self, items):
        middle = len(items) // 2
        return self.random.choice(items[:middle] if self.half == 0 else items[middle:])

    def some(self, items, least, most):
        middle = len(items) // 2
        return self.random.sample(items[:middle] if self.half == 0 else items[middle:], self.random.randint(least, most))

    def number(self, least, most):
        return self.random.randint(least, most)

    def price(self):
        return self.random.randint(300, 20000) / 100

    def date(self):
        return datetime.date(2026, 1, 1) + datetime.timedelta(days=self.random.randint(0, 700))

    def hour(self):
        return f"{self.random.randint(7, 20):02d}:{self.random.choice(['00', '15', '30', '45'])}"

    def call_id(self):  # nine letters and digits, which the strictest templates ask for
        return "".join(self.random.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(9))


def tool(name, about, required=None, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties) if required is None else required}
    return {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}


def text(about=None, **more):
    return {"type": "string", **({"description": about} if about else {}), **more}


WHOLE, NUMBER, FLAG = {"type": "integer"}, {"type": "number"}, {"type": "boolean"}


def listed(of):
    return {"type": "array", "items": of}


def fields(**properties):
    return {"type": "object", "properties": properties}


# Each template returns (tools, question, [(name, arguments, result)], answer). Those of one file are in one list.
def weather_now(d):
    town, degrees, wind = d.of(TOWNS), d.number(-8, 33), d.number(1, 60)
    unit = d.random.choice(["celsius", "fahrenheit"])
    ask = d.random.choice([f"What is the weather like in {town} right now?", f"Do I need a coat in {town} today? I think in {unit}.",
                           f"How warm is it in {town} at the moment?"])
    return ([tool("get_weather", "Current weather of a city", ["city"], city=text(), unit=text(enum=["celsius", "fahrenheit"]))], ask,
            [("get_weather", {"city": town, "unit": unit}, {"temperature": degrees, "wind_kmh": wind})],
            f"It is {degrees} degrees {unit} in {town} now, with wind of {wind} km/h.")


def new_event(d):
    who, day, at, minutes = d.some(NAMES, 1, 3), d.date().isoformat(), d.hour(), d.random.choice([15, 30, 45, 60, 90])
    what = d.random.choice(["Budget review", "Design talk", "Lunch", "Interview", "Planning"])
    return ([tool("create_event", "Put an event into the calendar", title=text(), start=text("ISO 8601"), minutes=WHOLE, attendees=listed(text()))],
            f"Please put \"{what}\" with {' and '.join(who)} into my calendar for {day} at {at}, {minutes} minutes.",
            [("create_event", {"title": what, "start": f"{day}T{at}:00", "minutes": minutes, "attendees": who}, {"ok": True, "id": d.number(100, 999)})],
            f"Done: {what} on {day} at {at} with {', '.join(who)}.")


def web_search(d):
    topic, count = d.of(TOPICS), d.number(2, 8)
    found = [{"title": f"{t} {topic}", "url": f"https://example.org/{d.number(1000, 9999)}"} for t in d.random.sample(["All about", "A short history of", "Facts on"], 2)]
    return ([tool("search_web", "Search the web", ["query"], query=text(), limit=WHOLE)], f"Find me {count} pages about {topic}.",
            [("search_web", {"query": topic, "limit": count}, found)], f"I found \"{found[0]['title']}\" and \"{found[1]['title']}\".")


def sql_sales(d):
    year, least = d.number(2015, 2025), d.number(2, 90) * 100
    query = f"SELECT region, SUM(amount) AS total FROM sales WHERE year = {year} GROUP BY region HAVING SUM(amount) > {least} ORDER BY total DESC"
    rows = [[r, least + d.number(1, 5000)] for r in d.random.sample(["north", "south", "east", "west"], 2)]
    return ([tool("run_sql", "Run a read-only query. Tables: sales(region, amount, year)", query=text())],
            f"Which regions sold for more than {least} in {year}? Largest first.", [("run_sql", {"query": query}, {"rows": rows})],
            f"In {year}: {rows[0][0]} with {rows[0][1]} and {rows[1][0]} with {rows[1][1]}.")


def order_things(d):
    items = [{"sku": f"{t.split()[0][:3].upper()}-{d.number(10, 99)}", "quantity": d.number(1, 9)} for t in d.some(THINGS, 1, 3)]
    name, town, code = d.of(NAMES), d.of(TOWNS), str(d.number(10000, 99999))
    wishes = ", ".join(f"{i['quantity']} of {i['sku']}" for i in items)
    address = {"name": name, "city": town, "postcode": code}
    return ([tool("place_order", "Order articles", items=listed(fields(sku=text(), quantity=WHOLE)), ship_to=fields(name=text(), city=text(), postcode=text()), express=FLAG)],
            f"Order {wishes} to {name}, {code} {town}. No hurry.",
            [("place_order", {"items": items, "ship_to": address, "express": False}, {"order": d.number(10000, 99999), "days": d.number(2, 9)})],
            f"Ordered {wishes} for {name} in {town}.")


def convert_list(d):
    values, unit, to = sorted(d.number(1, 400) for _ in range(d.number(2, 6))), *d.random.choice([("mile", "km"), ("inch", "cm"), ("pound", "kg")])
    factor = {"mile": 1.609344, "inch": 2.54, "pound": 0.45359237}[unit]
    return ([tool("convert_units", "Convert numbers from one unit to another", values=listed(NUMBER), source=text(), target=text())],
            f"Convert {', '.join(map(str, values))} {unit} to {to}.",
            [("convert_units", {"values": values, "source": unit, "target": to}, [round(v * factor, 2) for v in values])],
            f"In {to}: {', '.join(str(round(v * factor, 2)) for v in values)}.")


def two_mails(d):
    first, second = d.some(NAMES, 2, 2)
    topic, day = d.of(TOPICS), d.date().strftime("%A")
    mails = [{"to": [f"{n.lower()}@example.com"], "subject": f"Notes on {topic}", "body": f"Dear {n},\nthe notes on {topic} come on {day}.\n"} for n in (first, second)]
    return ([tool("send_mail", "Send a mail", to=listed(text()), subject=text(), body=text())],
            f"Write to {first} and {second}, one mail each: the notes on {topic} come on {day}.",
            [("send_mail", m, {"sent": True}) for m in mails], f"Both have mail: {first} and {second}.")


def filter_flights(d):
    here, there, day = *d.some(TOWNS, 2, 2), d.date().isoformat()
    most = d.number(8, 60) * 10
    filters = {"max_price": most, "stops": d.number(0, 2), "airlines": d.random.sample(["KQ", "LX", "TP", "NH", "SK"], d.number(1, 3))}
    return ([tool("find_flights", "Find flights", ["origin", "destination", "date"], origin=text(), destination=text(), date=text(),
                  filters=fields(max_price=NUMBER, stops=WHOLE, airlines=listed(text())))],
            f"Flights from {here} to {there} on {day}, at most {most} euros, {filters['stops']} stops, with {' or '.join(filters['airlines'])}.",
            [("find_flights", {"origin": here, "destination": there, "date": day, "filters": filters}, {"flights": [{"no": f"{filters['airlines'][0]}{d.number(100, 999)}", "price": most - 7}]})],
            f"There is one flight from {here} to {there} for {most - 7} euros.")


CALIBRATION = [weather_now, new_event, web_search, sql_sales, order_things, convert_list, two_mails, filter_flights]


def forecast_days(d):
    place, days = d.of(TOWNS), d.number(2, 7)
    wanted = d.random.sample(["rain", "sun_hours", "humidity", "gusts"], d.number(1, 3))
    return ([tool("forecast", "Weather of the coming days", location=fields(name=text(), country=text("two letters")), days=WHOLE, measures=listed(text()))],
            f"I travel to {place}. Tell me the {' and '.join(wanted)} of the next {days} days, please.",
            [("forecast", {"location": {"name": place, "country": COUNTRIES[place]}, "days": days, "measures": wanted}, {m: [d.number(0, 90) for _ in range(days)] for m in wanted})],
            f"For {place} I have {', '.join(wanted)} of {days} days; the first values are above.")


def free_slots(d):
    people, begin = d.some(NAMES, 2, 4), d.date()
    end, length = begin + datetime.timedelta(days=d.number(1, 5)), d.random.choice(["PT30M", "PT1H", "PT2H"])
    slot = f"{begin}T{d.hour()}"
    return ([tool("find_free_time", "When all of some people are free", participants=listed(text()), window=fields(begin=text(), end=text()), duration=text("ISO 8601 duration"))],
            f"When can {', '.join(people)} meet between {begin} and {end}? We need {length[2:].lower()}.",
            [("find_free_time", {"participants": people, "window": {"begin": str(begin), "end": str(end)}, "duration": length}, {"free": [slot]})],
            f"All of them are free at {slot.replace('T', ', ')}.")


def library_lookup(d):
    topic, author, year = d.of(TOPICS), d.of(NAMES), d.number(1950, 2020)
    return ([tool("lookup_books", "Search the library", ["terms"], terms=text(), author=text(), published_after=WHOLE, languages=listed(text(enum=["en", "fr", "de", "es"])))],
            f"Is there a book on {topic} by {author}, newer than {year}? English or French will do.",
            [("lookup_books", {"terms": topic, "author": author, "published_after": year, "languages": ["en", "fr"]}, {"hits": [{"title": f"On {topic}", "year": year + d.number(1, 5), "shelf": f"{d.random.choice('ABCDEF')}{d.number(1, 40)}"}]})],
            f"Yes: \"On {topic}\" by {author} is in the library.")


def query_log(d):
    minutes, code = d.random.choice([5, 15, 60, 240]), d.random.choice([404, 429, 500, 502, 503])
    statement = f"select path, count(*) from requests where status = {code} and at > now() - interval '{minutes} minutes' group by path order by 2 desc limit {d.number(3, 9)}"
    path = d.random.choice(["/login", "/cart", "/api/v2/items", "/search"])
    return ([tool("query_database", "Ask the log database (PostgreSQL)", statement=text(), timeout_ms=WHOLE)],
            f"Which paths answered {code} most often in the last {minutes} minutes?",
            [("query_database", {"statement": statement, "timeout_ms": 500 * d.number(1, 10)}, {"columns": ["path", "count"], "rows": [[path, d.number(3, 900)]]})],
            f"{path} did, more than any other path, in the last {minutes} minutes.")


def book_rooms(d):
    guests = [{"name": n, "age": d.number(18, 80)} for n in d.some(NAMES, 1, 3)]
    town, first, nights, most = d.of(TOWNS), d.date(), d.number(1, 9), d.price()
    stay = {"check_in": str(first), "nights": nights}
    return ([tool("book_hotel", "Book a hotel room", city=text(), stay=fields(check_in=text(), nights=WHOLE), guests=listed(fields(name=text(), age=WHOLE)), max_rate=NUMBER)],
            f"Book a room in {town} from {first} for {nights} nights, for {' and '.join(g['name'] + ', ' + str(g['age']) for g in guests)}. At most {most} a night.",
            [("book_hotel", {"city": town, "stay": stay, "guests": guests, "max_rate": most}, {"confirmation": d.call_id().upper(), "rate": round(most - 1.5, 2)})],
            f"The room in {town} is booked from {first}, {nights} nights.")


def plot_points(d):
    points = [[x, d.number(-50, 50)] for x in range(d.number(3, 7))]
    colour, thing = d.random.choice(["#aa3311", "#225588", "#44aa77"]), d.of(THINGS)
    return ([tool("draw_chart", "Draw a line chart", title=text(), series=listed(fields(label=text(), points=listed(listed(NUMBER)), colour=text())))],
            f"Draw how returns of the {thing} went: {', '.join(f'week {x}: {y}' for x, y in points)}. Colour {colour}.",
            [("draw_chart", {"title": f"Returns of the {thing}", "series": [{"label": thing, "points": points, "colour": colour}]}, {"file": f"chart-{d.number(1, 99)}.svg"})],
            f"The chart of the {thing} has {len(points)} points.")


def two_prices(d):
    first, second = d.some(THINGS, 2, 2)
    prices = [d.price(), d.price()]
    cheaper = first if prices[0] <= prices[1] else second
    return ([tool("price_of", "Price of an article in a shop", article=text(), currency=text(enum=["EUR", "NOK", "JPY"]), in_stock_only=FLAG)],
            f"Which is cheaper, the {first} or the {second}? In euros, and only what is in stock.",
            [("price_of", {"article": a, "currency": "EUR", "in_stock_only": True}, {"price": p}) for a, p in ((first, prices[0]), (second, prices[1]))],
            f"The {cheaper} is cheaper: {min(prices)} euros against {max(prices)}.")


def set_lights(d):
    rooms = d.random.sample(["kitchen", "hall", "attic", "study", "porch"], d.number(1, 3))
    level, warm, at = d.number(1, 20) * 5, d.random.choice([2700, 3000, 4000]), d.hour()
    scene = {room: {"on": True, "level": level, "kelvin": warm} for room in rooms}
    return ([tool("apply_scene", "Set the lights of rooms", scene={"type": "object", "additionalProperties": fields(on=FLAG, level=WHOLE, kelvin=WHOLE)}, at=text("HH:MM"), fade_seconds=NUMBER)],
            f"At {at} set the light in the {' and the '.join(rooms)} to {level}%, {warm} kelvin, and take your time.",
            [("apply_scene", {"scene": scene, "at": at, "fade_seconds": d.number(1, 40) / 2}, {"scheduled": len(rooms)})],
            f"At {at} the light of {len(rooms)} rooms goes to {level}%.")


HELDOUT = [forecast_days, free_slots, library_lookup, query_log, book_rooms, plot_points, two_prices, set_lights]


def conversation(make, number, half):
    d = Draw(f"{make.__name__} {number}", half)
    tools, question, calls, answer = make(d)
    ids = [d.call_id() for _ in calls]
    asked = [{"id": i, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}} for i, (name, arguments, _) in zip(ids, calls)]
    results = [{"role": "tool", "tool_call_id": i, "name": name, "content": json.dumps(result)} for i, (name, _, result) in zip(ids, calls)]
    return {"id": f"tools/{make.__name__}-{number}", "domain": "tools",
            "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "", "tool_calls": asked}, *results, {"role": "assistant", "content": answer}],
            "tools": tools}


def lines(templates, half):
    seen, made = set(), {make: [] for make in templates}
    for make in templates:
        number = 0
        while len(made[make]) < EACH:
            one = conversation(make, number, half)
            number += 1
            if one["messages"][0]["content"] not in seen:
                seen.add(one["messages"][0]["content"])
                made[make].append(json.dumps(one))
    return "".join(made[make][i] + "\n" for i in range(EACH) for make in templates)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is not what would be written")
    check = parser.parse_args().check
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "models", "data")
    for name, templates, half in (("tools-calibration.jsonl", CALIBRATION, 0), ("tools-heldout.jsonl", HELDOUT, 1)):
        path, wanted = os.path.join(folder, name), lines(templates, half)
        if check:
            assert open(path).read() == wanted, f"{path} is not what {__file__} writes"
        else:
            with open(path, "w") as file:
                file.write(wanted)
        print(f"{name}: {wanted.count(chr(10))} conversations, {len(wanted)} bytes")


if __name__ == "__main__":
    main()
