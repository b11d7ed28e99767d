"""A job in plain loops over lists, without Beam: its shards are those of the pipelines."""

from collections import Counter, defaultdict

from big_align.prepare import steps, text_rules
from big_align.prepare.plan import JobPlan
from big_align.prepare.rules import Kept, Pair, decide_group
from big_align.prepare.sampling import choose_rates, count_languages
from big_align.prepare.text_rules import identify_text, pair_up, split_unigrams


def find_rare(plan, pairs):
    """Returns the texts that have a rare token."""
    if plan.rules.tokens is None:
        return set()
    words = [split_unigrams(pair.text) for _, pair in pairs]
    counts = [Counter(token for each in words for token in make(each)) for make in (list, pair_up)]
    histograms = [Counter(count.values()) for count in counts]
    rule = text_rules.choose_token_rule(*histograms, plan.rules.tokens, plan.rules.scale_tokens)
    if rule is None:
        return set()
    both = counts[0] + (counts[1] if rule.bigrams else Counter())
    rare = set()
    for each, (_, pair) in zip(words, pairs, strict=True):
        tokens = [*each, *(pair_up(each) if rule.bigrams else [])]
        if any(both[token] < rule.min_count for token in tokens):
            rare.add(identify_text(pair.text))
    return rare


def find_drawn(plan, groups, crowded):
    """Returns what tells which pairs are kept of those that no rule drops."""
    rules, counts = plan.rules, Counter()
    if rules.language_temperature is None:
        return None
    for image, group in groups.items():
        counts.update(count_languages(group, crowded[image], False, rules))
    rates = choose_rates(counts, rules.language_temperature, rules.language_floor)
    return plan.sample_languages(rates)


def write_plainly(plan: JobPlan):
    """Writes the shards of a job; returns how many pairs each rule would drop."""
    files = range(len(plan.inputs.paths))
    stretches = [stretch for file in files for stretch in steps.open_file(file, plan)]
    for stretch in stretches:
        steps.examine(tuple(stretch), plan)
    pairs = [
        (image, Pair(*values)) for stretch in stretches for image, values in
        steps.read_pairs(stretch, plan)
    ]  # fmt: skip
    rare, images_of, texts_of = find_rare(plan, pairs), defaultdict(set), defaultdict(set)
    groups = defaultdict(list)
    for image, pair in pairs:
        images_of[identify_text(pair.text)].add(image)
        texts_of[image].add(identify_text(pair.text))
    for image, pair in pairs:
        text, most = identify_text(pair.text), plan.rules.max_images
        shared = ("shared",) * (most is not None and len(images_of[text]) > most)
        failed = pair.failed + shared + ("rare",) * (text in rare)
        groups[image].append(pair._replace(failed=failed))
    fails, kept, most = Counter(), [], plan.rules.max_texts
    crowded = {image: most is not None and len(texts_of[image]) > most for image in groups}
    is_drawn = find_drawn(plan, groups, crowded)
    for image, group in groups.items():
        for each in decide_group(group, crowded[image], False, plan.rules, is_drawn):
            if isinstance(each, Kept):
                kept.append(each)
            else:
                fails.update(each[1])
    _write(plan, kept)
    return fails


def _write(plan, kept):
    kept.sort(key=lambda each: (plan.draw(*each.first[:2]), each.first[:2]))
    rows, shards = defaultdict(list), defaultdict(list)
    for rank, each in enumerate(kept):
        about = [each.texts, each.languages, each.labels, each.merged]
        size = each.first.width, each.first.height, each.first.size
        ranked = rank, len(kept), (b"", each.first.file, each.first.row, size, about)
        stretch, row = steps.place_example(ranked, plan)
        rows[stretch].append(row)
    for group in rows.items():
        steps.write_placed(group, plan)
    for stretch in plan.list_stretches():
        for shard, member in steps.read_members(stretch, plan, frozenset(range(len(kept)))):
            shards[shard].append(member)
    for group in shards.items():
        steps.write_shard(group, plan, len(kept))
