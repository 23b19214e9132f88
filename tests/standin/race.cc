/* race.cc: who used which bytes, and in what order. An operation happens after what its stream's
 * clock counts: earlier operations of the stream, those before an event that it waited for, and
 * those the host had seen the end of when it put the operation there. */
#include "tests/standin/inside.h"
#include <algorithm>
#include <set>

namespace {

bool before(const standin_user &earlier, const standin_clock &now) {
    return !earlier.name || (earlier.slot < now.size() && now[earlier.slot] >= earlier.time);
}

[[noreturn]] void race(const standin_user &user, const standin_access &access,
                       const standin_user &other, bool other_writes) {
    const char *verb = user.slot == standin_host ? "frees" : access.write ? "writes" : "reads";
    standin_die("race: %s on %s %s %zu bytes at %s that %s on %s %s: no event joins them%s",
                user.name, standin_slot_name(user.slot).c_str(), verb, access.bytes,
                standin_describe(access.begin).c_str(), other.name,
                standin_slot_name(other.slot).c_str(), other_writes ? "writes" : "reads",
                user.slot == standin_host ? ", the host has not seen its end" : "");
}

} // namespace

void standin_join(standin_clock *into, const standin_clock &from) {
    if (into->size() < from.size())
        into->resize(from.size());
    for (size_t i = 0; i < from.size(); i++)
        (*into)[i] = std::max((*into)[i], from[i]);
}

const char *standin_forever(const std::string &name) {
    static auto *names = new std::set<std::string>;
    return names->insert(name).first->c_str();
}

std::string standin_slot_name(unsigned slot) {
    if (slot == standin_host)
        return "the host";
    const unsigned i = slot - 1;
    return std::string("stream ") + static_cast<char>('A' + i % 26) +
           (i < 26 ? "" : std::to_string(i / 26));
}

standin_history &standin_memory_history() {
    static auto *history = new standin_history;
    return *history;
}

void standin_history::split(uintptr_t at) {
    auto next = stretches.upper_bound(at);
    if (next == stretches.begin())
        return;
    auto s = std::prev(next);
    if (s->first == at || s->second.end <= at)
        return;
    stretch rest = s->second;
    s->second.end = at;
    stretches.emplace(at, std::move(rest));
}

/* Makes stretches of what has none, as the host's memory, and lets one begin and end there. */
void standin_history::cover(uintptr_t begin, uintptr_t end) {
    split(begin);
    split(end);
    for (uintptr_t at = begin; at < end;) {
        auto next = stretches.lower_bound(at);
        if (next == stretches.end() || next->first > at) {
            const uintptr_t to = next == stretches.end() ? end : std::min(end, next->first);
            next = stretches.emplace(at, stretch{to, true, {}, {}}).first;
        }
        at = next->second.end;
    }
}

void standin_history::use(const standin_user &user, const standin_clock &now,
                          const standin_access &access) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(access.begin), end = begin + access.bytes;
    cover(begin, end);
    const auto first = stretches.lower_bound(begin), last = stretches.lower_bound(end);
    for (auto i = first; i != last; ++i) {
        stretch &s = i->second;
        if (!access.write && !s.written)
            standin_die("unwritten: %s on %s reads %zu bytes at %s: nobody wrote %zu of them at %s",
                        user.name, standin_slot_name(user.slot).c_str(), access.bytes,
                        standin_describe(access.begin).c_str(), s.end - i->first,
                        standin_describe(reinterpret_cast<const void *>(i->first)).c_str());
        if (!before(s.writer, now))
            race(user, access, s.writer, true);
        for (const standin_user &reader : s.readers)
            if (access.write && !before(reader, now))
                race(user, access, reader, false);
        if (access.write)
            continue;
        auto own = std::find_if(s.readers.begin(), s.readers.end(),
                                [&](const standin_user &r) { return r.slot == user.slot; });
        if (own == s.readers.end())
            s.readers.push_back(user);
        else
            *own = user;
    }
    if (access.write && access.bytes) {
        stretches.erase(first, last);
        stretches.emplace(begin, stretch{end, true, user, {}});
    }
}

void standin_history::unwritten(const void *p, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p);
    stretches.emplace(begin, stretch{begin + bytes, false, {}, {}});
}

void standin_history::forget(const void *p, size_t bytes) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(p), end = begin + bytes;
    split(begin);
    split(end);
    stretches.erase(stretches.lower_bound(begin), stretches.lower_bound(end));
}
