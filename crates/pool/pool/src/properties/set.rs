//! Sets pool properties and enables features.
//!
//! Parsing a setting validates it by the rules that `zpool set` and `zpool create -o` share. The setting is
//! then applied in syncing context. Upper layers produce the messages for users.
//!
//! Page `docs/format/properties.md`, "Pools".

use crate::PoolError;
use crate::error::Reading;
use crate::failure::FailMode;
use crate::features::counts::{FeatureError, demand_written};
use crate::history::append::HistoryEvent;
use crate::pool::Pool;
use crate::properties::{Form, compatibility, table};
use crate::sync::context::SyncContext;
use millpond_ondisk::pool_directory::key;
use millpond_ondisk::zap::ZapValue;
use millpond_ondisk::{FEATURES, Feature, FeatureFlags, Guid, ObjectId, ObjectType, PoolVersion};

const WHAT: &str = "pool properties";
/// The longest comment, in characters.
const COMMENT_CHARS_MAX: usize = 32;
/// The longest name and value of a user property, in bytes.
pub(crate) const USER_BYTES_MAX: (usize, usize) = (255, 8191);

/// When a property is set. Some properties can be set only when the pool is created.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingTime {
    /// When the pool is created.
    Creation,
    /// After the pool was created.
    Later,
}

/// A validated property with its value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolSetting {
    /// A number from the table of pool properties, stored under that name.
    Number {
        /// The property.
        name: &'static str,
        /// The value as stored.
        value: u64,
        /// The value as the history records it.
        text: String,
    },
    /// `comment`: stored in configuration and labels.
    Comment(String),
    /// `compatibility`: stored in configuration and labels. `off` means none.
    Compatibility(String),
    /// `feature@NAME=enabled`.
    EnableFeature(&'static str),
    /// `feature@NAME=disabled`, only when the pool is created.
    DisableFeature(&'static str),
    /// A user property; an empty value removes it.
    User {
        /// The name including its colon.
        name: String,
        /// The value.
        value: String,
    },
    /// A valid property that is a setting of the open pool and not stored in it: `altroot`, `cachefile`,
    /// `readonly`.
    NotStored {
        /// The property.
        name: &'static str,
        /// The value.
        value: String,
    },
}

/// A name or text from the property tables.
pub type Word = &'static str;

/// Why a property cannot be set to a value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SettingError {
    /// The property does not exist.
    #[error("invalid property '{0}'")]
    Unknown(String),
    /// The property is read-only.
    #[error("'{0}' is readonly")]
    ReadOnly(#[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))] Word),
    /// The property can be set only when the pool is created or imported.
    #[error("property '{0}' can only be set during pool creation or import")]
    OnlyAtCreation(#[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))] Word),
    /// The property cannot be set at creation, because it names something in the pool.
    #[error("property '{0}' cannot be set at creation or import time")]
    NotAtCreation(#[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))] Word),
    /// The value is not one of the property's words.
    #[error("'{name}' must be one of '{values}'")]
    NotAWord {
        /// The property.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))]
        name: Word,
        /// The values that it accepts.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))]
        values: Word,
    },
    /// The value is not a number.
    #[error("'{name}' must be a number")]
    NotANumber {
        /// The property.
        #[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))]
        name: Word,
    },
    /// No vdev can have this sector size.
    #[error("property 'ashift' number {0} is invalid, only values between 9 and 16 are allowed.")]
    Ashift(u64),
    /// The comment is longer than 32 characters.
    #[error("comment must not exceed 32 characters")]
    CommentTooLong,
    /// The comment contains unprintable characters.
    #[error("comment may only have printable characters")]
    CommentUnprintable,
    /// There is no such version, or it is below that of the pool.
    #[error("property 'version' number {0} is invalid.")]
    Version(u64),
    /// Multihost needs a host id, which distinguishes the hosts' heartbeats.
    #[error("requires a non-zero system hostid")]
    NeedsHostid,
    /// The value is neither `enabled` nor `disabled`.
    #[error("property 'feature@{0}' can only be set to 'enabled' or 'disabled'")]
    FeatureValue(String),
    /// An enabled feature cannot be disabled.
    #[error("property 'feature@{0}' can only be set to 'disabled' at creation time")]
    FeatureDisable(String),
    /// The feature cannot be enabled.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// Such a value has no NUL.
    #[error("property '{0}' cannot have a NUL character")]
    HasNul(#[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))] Word),
    /// The name or value of a user property, or the list of `compatibility`, is too long.
    #[error("property '{0}' is too long")]
    TooLong(String),
    /// A required function is not implemented.
    #[error("property '{0}' is not supported yet")]
    Unsupported(#[cfg_attr(feature = "serde", serde(deserialize_with = "known_words"))] Word),
}

/// Replaces a deserialized text with the equal text of the property tables.
#[cfg(feature = "serde")]
fn known_words<'de, D: serde::Deserializer<'de>>(from: D) -> Result<&'static str, D::Error> {
    let text = <std::borrow::Cow<'de, str> as serde::Deserialize>::deserialize(from)?;
    let pools = crate::properties::table::POOL_PROPERTIES.iter();
    let vdevs = crate::properties::vdev_table::VDEV_PROPERTIES.iter();
    let mut known = pools
        .chain(vdevs)
        .flat_map(|shape| [shape.name, shape.values]);
    let found = known.find(|word| *word == text);
    found.ok_or_else(|| serde::de::Error::custom("no word of a property of pools or vdevs"))
}

impl PoolSetting {
    /// Validates a name and value from the command line.
    ///
    /// Does not accept `bootfs`, whose value is a dataset; see [`PoolSetting::boot_dataset`].
    ///
    /// # Errors
    /// [`SettingError`].
    pub fn parse(name: &str, value: &str, time: SettingTime) -> Result<Self, SettingError> {
        if let Some(feature) = name.strip_prefix("feature@") {
            return parse_feature(feature, value, time);
        }
        if name.contains(':') {
            let is_legal = |byte: u8| {
                let is_word = byte.is_ascii_lowercase() || byte.is_ascii_digit();
                is_word || matches!(byte, b':' | b'-' | b'.' | b'_')
            };
            if !name.bytes().all(is_legal) {
                return Err(SettingError::Unknown(name.to_owned()));
            }
            if name.len() > USER_BYTES_MAX.0 || value.len() > USER_BYTES_MAX.1 {
                return Err(SettingError::TooLong(name.to_owned()));
            }
            return Ok(Self::User {
                name: name.to_owned(),
                value: value.to_owned(),
            });
        }
        let shape = table::find(name).ok_or_else(|| SettingError::Unknown(name.to_owned()))?;
        let name = shape.name;
        if !shape.edit.is_editable() {
            return Err(SettingError::ReadOnly(name));
        }
        let is_creation = time == SettingTime::Creation;
        match name {
            "altroot" | "readonly" if !is_creation => Err(SettingError::OnlyAtCreation(name)),
            "altroot" | "readonly" | "cachefile" => Ok(Self::NotStored {
                name,
                value: value.to_owned(),
            }),
            "bootfs" => Err(SettingError::NotAtCreation(name)),
            "comment" => parse_comment(value),
            "compatibility" => compatibility::parse(value),
            "version" => match value.parse() {
                Ok(version) if PoolVersion(version).is_known() => {
                    Ok(Self::number(name, version, value))
                }
                Ok(other) => Err(SettingError::Version(other)),
                Err(_) => Err(SettingError::NotANumber { name }),
            },
            _ => {
                if let Form::Words(_) = shape.form {
                    let values = shape.values;
                    let number = shape.number_of(value);
                    let number = number.ok_or(SettingError::NotAWord { name, values })?;
                    // The history records the number of a word.
                    return Ok(Self::number(name, number, &number.to_string()));
                }
                let number = match (name, value) {
                    ("dedup_table_quota", "auto") => u64::MAX,
                    ("dedup_table_quota", "none") => 0,
                    _ => value
                        .parse()
                        .map_err(|_| SettingError::NotANumber { name })?,
                };
                if name == "ashift" && number != 0 && !(9..=16).contains(&number) {
                    return Err(SettingError::Ashift(number));
                }
                Ok(Self::number(name, number, &number.to_string()))
            }
        }
    }

    /// `bootfs`: the dataset to boot from, `None` for none. `text` is its name.
    #[must_use]
    pub fn boot_dataset(dataset: Option<ObjectId>, text: &str) -> Self {
        Self::number("bootfs", dataset.map_or(0, |id| id.0), text)
    }

    fn number(name: &'static str, value: u64, text: &str) -> Self {
        Self::Number {
            name,
            value,
            text: text.to_owned(),
        }
    }
}

fn parse_feature(name: &str, value: &str, time: SettingTime) -> Result<PoolSetting, SettingError> {
    let feature = Feature::by_name(name).ok_or_else(|| FeatureError::Unknown(name.to_owned()))?;
    match (value, time) {
        ("enabled", _) => {
            demand_written(feature)?;
            Ok(PoolSetting::EnableFeature(feature.name()))
        }
        ("disabled", SettingTime::Creation) => Ok(PoolSetting::DisableFeature(feature.name())),
        ("disabled", SettingTime::Later) => Err(SettingError::FeatureDisable(name.to_owned())),
        _ => Err(SettingError::FeatureValue(name.to_owned())),
    }
}

fn parse_comment(value: &str) -> Result<PoolSetting, SettingError> {
    if !value.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(SettingError::CommentUnprintable);
    }
    if value.len() > COMMENT_CHARS_MAX {
        return Err(SettingError::CommentTooLong);
    }
    Ok(PoolSetting::Comment(value.to_owned()))
}

impl Pool {
    /// Refuses a property that a pool of this version cannot have.
    ///
    /// # Errors
    /// [`PoolError::Unsupported`].
    pub fn check_property(&self, setting: &PoolSetting) -> Result<(), PoolError> {
        let has_place = match setting {
            PoolSetting::Number {
                name: "version",
                value,
                ..
            } => return self.check_raise(PoolVersion(*value)).map(drop),
            PoolSetting::Number { name: "bootfs", .. } => {
                PoolVersion(self.version()).has_boot_dataset()
            }
            _ => true,
        };
        let what = "this property in a pool of an older version";
        has_place
            .then_some(())
            .ok_or(PoolError::Unsupported { what })
    }

    /// Sets a property, and returns when it is on stable storage.
    ///
    /// Settings of the open pool ([`PoolSetting::NotStored`]) change nothing here.
    ///
    /// # Errors
    /// As [`Pool::check_property`] and [`Pool::sync_task`].
    pub fn set_property(&self, setting: &PoolSetting) -> Result<(), PoolError> {
        self.check_property(setting)?;
        let logs = match setting {
            PoolSetting::EnableFeature("head_errlog") => self.errors_by_head()?,
            _ => None,
        };
        self.sync_task(|ctx| {
            if let PoolSetting::EnableFeature(_) = setting {
                ctx.raise(PoolVersion::FEATURES)?;
            }
            ctx.set_pool_property(setting)?;
            ctx.replace_error_logs(logs.as_ref())
        })
    }

    /// Enables every feature that this software can write and that upgrades enable (`zpool upgrade`),
    /// limited to `compatible` (`None`: no limit).
    ///
    /// Returns the names of the newly enabled features.
    ///
    /// # Errors
    /// As [`Pool::sync_task`].
    pub fn upgrade(&self, compatible: Option<&[String]>) -> Result<Vec<&'static str>, PoolError> {
        if !PoolVersion(self.version()).has_features() {
            return Ok(vec![]);
        }
        let logs = self.errors_by_head()?;
        self.sync_task(|ctx| {
            let mut enabled = Vec::new();
            // Those that are enabled because others need them count too.
            let is_off = |one: &&Feature| !ctx.feature_is_enabled(one.guid);
            for feature in FEATURES.iter().filter(is_off).collect::<Vec<_>>() {
                let is_wanted = demand_written(feature).is_ok()
                    && feature.support == millpond_ondisk::FeatureSupport::Writes
                    && !feature.flags.contains(FeatureFlags::NO_UPGRADE)
                    && compatible
                        .is_none_or(|names| names.iter().any(|name| name == feature.name()));
                if is_wanted {
                    ctx.enable_in_list(feature, true)?;
                    enabled.push(feature.name());
                }
            }
            ctx.replace_error_logs(logs.as_ref())?;
            Ok(enabled)
        })
    }

    /// Changes the pool's guid to `wanted` or to a random one, and returns the new guid.
    ///
    /// Absent devices keep the old guid and can no longer be found. The caller must ensure that no device
    /// is absent.
    ///
    /// # Errors
    /// [`PoolError::Checkpoint`] if the pool has one; as [`Pool::sync_task`].
    pub fn reguid(&self, wanted: Option<Guid>) -> Result<Guid, PoolError> {
        let outcome = self.sync_task(|ctx| {
            if let Some(refusal) = ctx.pool.checkpoint_refusal() {
                return Ok(Err(refusal));
            }
            let old = ctx.pool.guid();
            let new = match wanted {
                Some(guid) => guid,
                None => loop {
                    let guid = crate::vdevs::new_vdev::random_u64(ctx.pool.env());
                    if guid != 0 && guid != old.0 {
                        break Guid(guid);
                    }
                },
            };
            {
                let mut state = ctx.pool.state.write();
                state.config.guid = new;
                state.config.root.guid = new;
                state.is_topology_stale = true;
            }
            ctx.mark_config_dirty();
            let text = format!("old={old} new={new}");
            ctx.history(&HistoryEvent::of_pool("guid change", text))?;
            Ok(Ok(new))
        })?;
        outcome.map_err(PoolError::Checkpoint)
    }
}

impl SyncContext<'_> {
    /// Enables a feature and its dependencies, and records it in the history.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn enable_feature(&self, feature: &Feature) -> Result<(), PoolError> {
        self.enable_in_list(feature, false)
    }

    /// Enables one of several features. With `always` it is recorded also if one before it needed it.
    pub(crate) fn enable_in_list(&self, feature: &Feature, always: bool) -> Result<(), PoolError> {
        let change = {
            let mut state = self.pool.state.write();
            let txg = self.txg();
            state.features.enable(feature, txg)?
        };
        if change.edits.is_empty() && !always {
            return Ok(());
        }
        self.store_features(&change)?;
        self.refresh_forms();
        self.pool.port.feature_enabled(self)?;
        let text = format!("feature@{}=enabled", feature.name());
        self.history(&HistoryEvent::of_pool("set", text))
    }

    /// Updates the settings that depend on features: how the MOS and space maps are written.
    pub(crate) fn refresh_forms(&self) {
        let (version, features) = (self.pool.version(), self.pool.features());
        self.mos()
            .set_policy(crate::open_for_writing::mos_policy(version, &features));
        self.pool
            .allocator()
            .set_forms(crate::space::maps::forms(&features));
    }

    /// Sets a property.
    ///
    /// # Errors
    /// If the MOS cannot be changed.
    pub fn set_pool_property(&self, setting: &PoolSetting) -> Result<(), PoolError> {
        let event = match setting {
            PoolSetting::NotStored { .. } | PoolSetting::DisableFeature(_) => return Ok(()),
            PoolSetting::EnableFeature(name) => {
                return match Feature::by_name(name) {
                    Some(feature) => self.enable_feature(feature),
                    None => Err(FeatureError::Unknown((*name).to_owned()).into()),
                };
            }
            PoolSetting::Number {
                name: "version",
                value,
                ..
            } => return self.raise(PoolVersion(*value)),
            PoolSetting::Number { name, value, text } => {
                self.set_table_number(self.property_table()?, name, *value)?;
                self.note_number(name, *value);
                format!("{name}={text}")
            }
            PoolSetting::Comment(text) => {
                self.pool.state.write().config.comment = Some(text.clone());
                self.mark_config_dirty();
                format!("comment={text}")
            }
            PoolSetting::Compatibility(text) => {
                let stored = Some(text.clone()).filter(|text| !matches!(text.as_str(), "off" | ""));
                self.pool.state.write().config.compatibility = stored;
                self.mark_config_dirty();
                format!("compatibility={text}")
            }
            PoolSetting::User { name, value } => {
                let table = self.property_table()?;
                if value.is_empty() {
                    self.remove_table_entry(table, name)?;
                } else {
                    let mut bytes = value.as_bytes().to_vec();
                    bytes.push(0);
                    self.table(table)?
                        .update(name.as_bytes(), &ZapValue::from_bytes(&bytes))
                        .reading(WHAT)?;
                }
                format!("{name}={value}")
            }
        };
        self.history(&HistoryEvent::of_pool("set", event))
    }

    /// Applies properties that affect the open pool.
    fn note_number(&self, name: &str, value: u64) {
        let mut state = self.pool.state.write();
        match name {
            "failmode" => {
                state.failmode = FailMode::from_number(value);
                self.pool.failure.set_mode(state.failmode);
            }
            "multihost" => state.multihost = value == 1,
            _ => {}
        }
    }

    /// The ZAP of properties, created if absent.
    fn property_table(&self) -> Result<ObjectId, PoolError> {
        if let Some(id) = self.directory_object(key::POOL_PROPERTIES)? {
            return Ok(id);
        }
        let id = self.create_table(ObjectType::POOL_PROPS)?;
        self.set_directory_number(key::POOL_PROPERTIES, id.0)?;
        Ok(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(name: &str, value: &str) -> Result<PoolSetting, SettingError> {
        PoolSetting::parse(name, value, SettingTime::Later)
    }

    #[test]
    fn values_are_stored_as_numbers_and_refused_with_the_reason() {
        let number = |name, value| match parse(name, value) {
            Ok(PoolSetting::Number { value, .. }) => Ok(value),
            Ok(other) => panic!("{other:?}"),
            Err(error) => Err(error),
        };
        assert_eq!(number("failmode", "continue"), Ok(1));
        assert_eq!(number("autotrim", "on"), Ok(1));
        assert_eq!(number("expand", "on"), Ok(1));
        assert_eq!(number("ashift", "12"), Ok(12));
        assert_eq!(number("ashift", "0"), Ok(0));
        assert_eq!(number("ashift", "17"), Err(SettingError::Ashift(17)));
        assert_eq!(
            number("ashift", "x"),
            Err(SettingError::NotANumber { name: "ashift" })
        );
        assert_eq!(number("dedup_table_quota", "auto"), Ok(u64::MAX));
        assert_eq!(number("version", "5000"), Ok(5000));
        assert_eq!(number("version", "29"), Err(SettingError::Version(29)));
        assert!(matches!(
            number("failmode", "never"),
            Err(SettingError::NotAWord {
                values: "wait | continue | panic",
                ..
            })
        ));
        assert_eq!(number("size", "1"), Err(SettingError::ReadOnly("size")));
        assert_eq!(
            number("siez", "1"),
            Err(SettingError::Unknown("siez".into()))
        );
        assert_eq!(number("multihost", "on"), Ok(1));
    }

    #[test]
    fn comments_are_short_and_printable() {
        assert_eq!(
            parse("comment", "hey"),
            Ok(PoolSetting::Comment("hey".into()))
        );
        assert_eq!(
            parse("comment", &"x".repeat(33)),
            Err(SettingError::CommentTooLong)
        );
        assert_eq!(
            parse("comment", "a\tb"),
            Err(SettingError::CommentUnprintable)
        );
        assert!(parse("comment", "").is_ok());
    }

    #[test]
    fn features_are_enabled_any_time_and_disabled_only_at_creation() {
        assert_eq!(
            parse("feature@longname", "enabled"),
            Ok(PoolSetting::EnableFeature("longname"))
        );
        assert_eq!(
            parse("feature@longname", "disabled"),
            Err(SettingError::FeatureDisable("longname".into()))
        );
        assert_eq!(
            PoolSetting::parse("feature@longname", "disabled", SettingTime::Creation),
            Ok(PoolSetting::DisableFeature("longname"))
        );
        assert_eq!(
            parse("feature@longname", "active"),
            Err(SettingError::FeatureValue("longname".into()))
        );
        assert!(matches!(
            parse("feature@draid_failure_domains", "enabled"),
            Err(SettingError::Feature(FeatureError::NotWritten(_)))
        ));
        assert!(matches!(
            parse("feature@warp", "enabled"),
            Err(SettingError::Feature(FeatureError::Unknown(_)))
        ));
    }

    #[test]
    fn some_belong_to_a_moment_and_users_have_their_own() {
        assert_eq!(
            parse("altroot", "/mnt"),
            Err(SettingError::OnlyAtCreation("altroot"))
        );
        assert!(PoolSetting::parse("altroot", "/mnt", SettingTime::Creation).is_ok());
        assert_eq!(
            parse("bootfs", "a/b"),
            Err(SettingError::NotAtCreation("bootfs"))
        );
        assert!(matches!(
            parse("com.example:a", "b"),
            Ok(PoolSetting::User { .. })
        ));
        assert!(matches!(
            parse("com.example:a", &"x".repeat(8192)),
            Err(SettingError::TooLong(_))
        ));
    }
}
