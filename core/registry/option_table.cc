#include "core/registry/option_table.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/status.h"

namespace pelton {
namespace {

std::string TextOf(bool value) { return value ? "true" : "false"; }

std::optional<bool> ReadBool(absl::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  return std::nullopt;
}

std::optional<double> ReadNumber(absl::string_view text, NumberRange range) {
  double number = 0;
  // A NaN is in no range.
  const bool fits =
      absl::SimpleAtod(text, &number) && number >= range.least && number <= range.most;
  return fits ? std::optional<double>(number) : std::nullopt;
}

std::string TextOf(NumberRange range) {
  return absl::StrCat("a number from ", range.least, " to ", range.most);
}

}  // namespace

void OptionTable::Bool(std::string name, bool* value, std::string meaning) {
  Add({std::move(name), TextOf(*value), "true or false", std::move(meaning)},
      [value](absl::string_view text) {
        const std::optional<bool> read = ReadBool(text);
        if (!read.has_value()) return false;
        *value = *read;
        return true;
      });
}

void OptionTable::BoolOrAuto(std::string name, std::optional<bool>* value, std::string meaning) {
  Add({std::move(name), value->has_value() ? TextOf(**value) : "auto", "auto, true or false",
       std::move(meaning)},
      [value](absl::string_view text) {
        const std::optional<bool> read = ReadBool(text);
        if (!read.has_value() && text != "auto") return false;
        *value = read;
        return true;
      });
}

void OptionTable::Count(std::string name, uint64_t* value, uint64_t least, std::string meaning) {
  Add({std::move(name), absl::StrCat(*value), absl::StrCat("a whole number of at least ", least),
       std::move(meaning)},
      [value, least](absl::string_view text) {
        uint64_t count = 0;
        if (!absl::SimpleAtoi(text, &count) || count < least) return false;
        *value = count;
        return true;
      });
}

void OptionTable::Number(std::string name, double* value, NumberRange range, std::string meaning) {
  Add({std::move(name), absl::StrCat(*value), TextOf(range), std::move(meaning)},
      [value, range](absl::string_view text) {
        const std::optional<double> read = ReadNumber(text, range);
        if (!read.has_value()) return false;
        *value = *read;
        return true;
      });
}

void OptionTable::NumberOrAuto(std::string name, std::optional<double>* value, NumberRange range,
                               std::string meaning) {
  Add({std::move(name), value->has_value() ? absl::StrCat(**value) : "auto",
       absl::StrCat("auto, or ", TextOf(range)), std::move(meaning)},
      [value, range](absl::string_view text) {
        const std::optional<double> read = ReadNumber(text, range);
        if (!read.has_value() && text != "auto") return false;
        *value = read;
        return true;
      });
}

void OptionTable::Choice(std::string name, std::string* value, std::vector<std::string> choices,
                         std::string meaning) {
  std::string values = absl::StrCat("one of ", absl::StrJoin(choices, ", "));
  Add({std::move(name), *value, std::move(values), std::move(meaning)},
      [value, choices = std::move(choices)](absl::string_view text) {
        if (std::find(choices.begin(), choices.end(), text) == choices.end()) return false;
        *value = std::string(text);
        return true;
      });
}

void OptionTable::Add(OptionDescription description, Setter set) {
  entries_.push_back({std::move(description), std::move(set)});
}

void OptionTable::Nested(std::string prefix, Options* values, OptionDescription description) {
  entries_.push_back({std::move(description), nullptr, values, std::move(prefix)});
}

void OptionTable::Refuse(std::string name, std::string reason) {
  Entry& entry = entries_.emplace_back();
  entry.description.name = std::move(name);
  entry.refusal = std::move(reason);
}

absl::Status OptionTable::Parse(const Options& options) const {
  for (const auto& [name, value] : options) {
    const Entry* const entry = Find(name);
    if (entry == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("option '", name, "' is unknown; there are: ", Listed()));
    }
    RETURN_IF_ERROR(Set(*entry, name, value));
  }
  return absl::OkStatus();
}

absl::Status OptionTable::Set(const Entry& entry, const std::string& name,
                              const std::string& value) const {
  if (!entry.refusal.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no option ", name, ": ", entry.refusal));
  }
  if (entry.nested != nullptr) {
    (*entry.nested)[name.substr(entry.prefix.size())] = value;
    return absl::OkStatus();
  }
  if (entry.set(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("option ", name, " is '", value, "', not ", entry.description.values));
}

std::vector<OptionDescription> OptionTable::Describe() const {
  std::vector<OptionDescription> all;
  for (const Entry& entry : entries_) {
    if (entry.refusal.empty()) all.push_back(entry.description);
  }
  return all;
}

const OptionTable::Entry* OptionTable::Find(absl::string_view name) const {
  for (const Entry& entry : entries_) {
    const bool is_it = entry.nested == nullptr
                           ? entry.description.name == name
                           : absl::StartsWith(name, entry.prefix) && name != entry.prefix;
    if (is_it) return &entry;
  }
  return nullptr;
}

std::string OptionTable::Listed() const {
  std::vector<std::string> names;
  for (const OptionDescription& known : Describe()) names.push_back(known.name);
  if (names.empty()) return "none";
  std::sort(names.begin(), names.end());
  return absl::StrJoin(names, ", ");
}

}  // namespace pelton
