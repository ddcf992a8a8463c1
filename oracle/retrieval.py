"""BM25, reciprocal rank fusion and measures of retrieval, written from their papers with the standard library alone.

Writes crates/retrieval/tests/data/ranking.json: three generated sets with their rankings, scores and measures. Measures
are checked against pytrec_eval where it is installed (pip install pytrec_eval-terrier).
"""

import json
import math
import pathlib
import random
import re
import unicodedata

OUT = pathlib.Path(__file__).parent.parent / "crates/retrieval/tests/data/ranking.json"
K1, B = 1.2, 0.75


def stem(word):
    """Harman's S-stemmer (1991), for ASCII words of more than three letters."""
    if len(word) <= 3 or not word.isascii():
        return word
    if word.endswith("ies") and word[-4] not in "ea":
        return word[:-3] + "y"
    if word.endswith("ies") or word.endswith("es"):
        return word if word[-3] in "aeo" else word[:-1]
    if word.endswith("s") and word[-2] not in "us":
        return word[:-1]
    return word


def terms(text):
    text = unicodedata.normalize("NFKC", text).lower()
    return [stem(word) for word in re.findall(r"[^\W_]+", text)]


def bm25(documents, query):
    """All documents with a term of the query, the best first; equal scores in their order."""
    texts = [terms(text) for text in documents]
    mean = sum(map(len, texts)) / len(texts)
    scores = [0.0] * len(texts)
    asked = terms(query)
    for term in dict.fromkeys(asked):
        holding = sum(term in set(text) for text in texts)
        weight = asked.count(term) * math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
        for at, text in enumerate(texts):
            tf = text.count(term)
            if tf:
                scores[at] += weight * tf * (K1 + 1) / (tf + K1 * (1 - B + B * len(text) / mean))
    found = [(at, score) for at, score in enumerate(scores) if score > 0]
    return sorted(found, key=lambda pair: (-pair[1], pair[0]))


def cosine(vectors, query):
    scores = [(at, math.fsum(a * b for a, b in zip(vector, query))) for at, vector in enumerate(vectors)]
    return sorted(scores, key=lambda pair: (-pair[1], pair[0]))


def fused(lists, depth):
    sums = {}
    for ranking in lists:
        for rank, (at, _) in enumerate(ranking[:depth], 1):
            sums[at] = sums.get(at, 0.0) + 1 / (60 + rank)
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))[:depth]


def measures(ranking, judged, k):
    gain = lambda at: max(0, judged.get(str(at), 0))
    dcg = sum(gain(at) / math.log2(rank + 1) for rank, (at, _) in enumerate(ranking[:k], 1))
    ideal = sorted((max(0, relevance) for relevance in judged.values()), reverse=True)[:k]
    best = sum(value / math.log2(rank + 1) for rank, value in enumerate(ideal, 1))
    hits = [rank for rank, (at, _) in enumerate(ranking[:k], 1) if gain(at) > 0]
    relevant = sum(relevance > 0 for relevance in judged.values())
    return {"ndcg": dcg / best, "mrr": 1 / hits[0] if hits else 0.0, "recall": len(hits) / relevant}


def unit(rng, size):
    vector = [rng.gauss(0, 1) for _ in range(size)]
    norm = math.sqrt(sum(x * x for x in vector))
    return [x / norm for x in vector]


def case(seed, documents, vocabulary):
    rng = random.Random(seed)
    # Zipf's law, by inverse powers of ranks.
    weights = [1 / (rank + 1) for rank in range(len(vocabulary))]
    words = lambda count: rng.choices(vocabulary, weights, k=count)
    texts = [" ".join(words(rng.randint(5, 120))) for _ in range(documents)]
    vectors = [unit(rng, 8) for _ in texts]
    queries = []
    for _ in range(12):
        query = " ".join(rng.choice(words(40)) for _ in range(rng.randint(1, 6)))
        vector = unit(rng, 8)
        judged = {str(rng.randrange(documents)): rng.randint(0, 3) for _ in range(8)}
        ranking = bm25(texts, query)
        judged.update({str(at): rng.randint(1, 3) for at, _ in rng.sample(ranking[:20], min(3, len(ranking)))})
        both = fused([ranking, cosine(vectors, vector)], 100)
        queries.append({
            "text": query, "vector": vector, "judged": judged,
            "bm25": ranking[:100], "fused": both,
            "measures": {str(k): measures(ranking, judged, k) for k in (1, 10, 100)},
        })
    return {"documents": texts, "vectors": vectors, "queries": queries}


def check(cases):
    try:
        import pytrec_eval
    except ImportError:
        print("pytrec_eval is not installed: measures are not checked against it")
        return
    worst = 0.0
    for case in cases:
        judged = {str(n): query["judged"] for n, query in enumerate(case["queries"])}
        # Scores by rank: trec_eval breaks ties by names.
        run = {str(n): {str(at): 1000.0 - rank for rank, (at, _) in enumerate(query["bm25"])} for n, query in enumerate(case["queries"])}
        evaluator = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.1,10,100", "recall.1,10,100", "recip_rank"})
        for n, found in evaluator.evaluate(run).items():
            for k, own in case["queries"][int(n)]["measures"].items():
                worst = max(worst, abs(found[f"ndcg_cut_{k}"] - own["ndcg"]), abs(found[f"recall_{k}"] - own["recall"]))
            worst = max(worst, abs(found["recip_rank"] - case["queries"][int(n)]["measures"]["100"]["mrr"]))
    print(f"largest difference from pytrec_eval: {worst:.1e}")


english = "the of and to in query queries index indexes box boxes city cities class classes bus gas tree trees shoes "
english += " ".join(f"subject{n} matters{n}" for n in range(150))
mixed = "café naïve Straße ﬁles ÉCOLE réseau données über Größe año señor señores Ω Москва города " + " ".join(f"T{n}x" for n in range(60))
code = "fn let mut self impl struct return max_tokens max_requests Vec String usize i32 " + " ".join(f"call_{n} Field{n}s" for n in range(80))
cases = [case(seed, size, words.split()) for seed, size, words in ((1, 120, english), (2, 60, mixed), (3, 90, code))]
check(cases)
OUT.parent.mkdir(parents=True, exist_ok=True)
OUT.write_text(json.dumps(cases, ensure_ascii=False, separators=(",", ":")) + "\n")
print(OUT, OUT.stat().st_size)
