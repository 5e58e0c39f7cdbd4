// The options of a registered part: one table, from which parsing, errors, lists and docs come.
#ifndef PELTON_CORE_REGISTRY_OPTION_TABLE_H_
#define PELTON_CORE_REGISTRY_OPTION_TABLE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pelton {

// Options by name, as text: "average" -> "true".
using Options = std::map<std::string, std::string>;

// What a list says of one option. Threads: a value. Owns: its texts.
struct OptionDescription {
  std::string name;
  std::string default_value;  // as it would be written
  std::string values;         // those that it takes: "true or false", "from 0 to 1"
  std::string meaning;        // units included
};

// The range of a number; its ends belong to it.
struct NumberRange {
  double least;
  double most;
};
inline constexpr NumberRange kFraction = {0, 1};
inline constexpr NumberRange kAnyRate = {0, 1e6};  // of learning

// Binds each option to the variable that holds its value. What the variable holds when it is bound
// is the option's default, so that no default is written twice.
// Threads: one at a time. Owns: its texts; borrows the variables.
class OptionTable {
 public:
  // Writes a value to where it belongs; false if the text is none of the option's values.
  using Setter = std::function<bool(absl::string_view text)>;

  void Bool(std::string name, bool* value, std::string meaning);
  // A bool, or "auto", which leaves `value` empty.
  void BoolOrAuto(std::string name, std::optional<bool>* value, std::string meaning);
  // A whole number.
  void Count(std::string name, uint64_t* value, uint64_t least, std::string meaning);
  void Number(std::string name, double* value, NumberRange range, std::string meaning);
  // A number, or "auto", which leaves `value` empty.
  void NumberOrAuto(std::string name, std::optional<double>* value, NumberRange range,
                    std::string meaning);
  void Choice(std::string name, std::string* value, std::vector<std::string> choices,
              std::string meaning);
  // For what the others do not say.
  void Add(OptionDescription description, Setter set);
  // Options whose names begin with `prefix`; they go to `values` without it, unread.
  void Nested(std::string prefix, Options* values, OptionDescription description);

  // An option that others have and this part has not, for a reason that its error gives.
  void Refuse(std::string name, std::string reason);

  // Sets what `options` names. Errors: InvalidArgument: an option is unknown, or its value does not
  // fit; the text names option and value, and lists what there is. Those read before it are set.
  absl::Status Parse(const Options& options) const;
  // In the order in which they were bound.
  std::vector<OptionDescription> Describe() const;

 private:
  struct Entry {
    OptionDescription description;
    Setter set;
    Options* nested = nullptr;  // of a prefix
    std::string prefix = {};
    std::string refusal = {};  // why there is no such option; it is in no list
  };

  const Entry* Find(absl::string_view name) const;
  absl::Status Set(const Entry& entry, const std::string& name, const std::string& value) const;
  std::string Listed() const;

  std::vector<Entry> entries_;
};

}  // namespace pelton

#endif  // PELTON_CORE_REGISTRY_OPTION_TABLE_H_
